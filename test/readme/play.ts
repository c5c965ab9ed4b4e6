import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { manifest } from '../../scripts/check/packed.ts'
import { event } from '../../src/index.ts'
import { type Postgres, type PostgresOptions, postgres } from '../../src/postgres/index.ts'
import { freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { root, samples } from './support.ts'

export const OrderPlaced = event<{ orderId: string; total: number }>('order.placed')

// biome-ignore lint/suspicious/noExplicitAny: what a sample makes has the types its page says, which `npm run check -- samples` checks
export type Names = Record<string, any>

/**
 * Runs a sample of a guide in this process, as it stands: the samples of `docs/guides/PAGE.md` are numbered from 1. `given` are
 * the names it takes for granted, such as `db`. Returns what it has made, by name. Samples import the package's own sources.
 */
export async function play(page: string, number: number, given: Names = {}): Promise<Names> {
  const code = samples(`docs/guides/${page}.md`)[number - 1]
  if (code === undefined) throw new Error(`${page} has no sample ${number}`)
  mkdirSync(join(root, '.cache'), { recursive: true })
  const folder = mkdtempSync(join(root, '.cache', 'sample-'))
  const file = join(folder, `${page.replaceAll('/', '-')}-${number}.mts`)
  const before = `const { ${Object.keys(given).join(', ')} } = globalThis.given\n`
  const made = [...code.matchAll(/^const (?:(\w+)|[[{] (.*?) [\]}] =|\[(.*?)\] =)/gm)].flatMap(([, ...names]) =>
    (names.find(Boolean) ?? '').split(', '),
  )
  const exported = [...code.matchAll(/^export (?:const|async function|function) (\w+)/gm)].map(([, name]) => name)
  const sources = code.replaceAll(/ from '(waybill[\w/-]*)'/g, (_, name: string) => ` from '${sourceOf(name)}'`)
  // One that runs until it is told to end has made everything before.
  const told = `globalThis.made = { ${[...made, ...exported].join(', ')} }\nawait run(`
  writeFileSync(file, `${before}${sources.replace(/^await run\(/m, told)}\nexport { ${made.join(', ')} }\n`)
  Object.assign(globalThis, { given, made: undefined })
  try {
    return (await import(file)) as Names
  } finally {
    rmSync(folder, { recursive: true })
  }
}

/** The same of one that ends with `run(…, { signal: shutdownSignal() })`: `until` gets what it has made and is awaited beside it, then it is told to end. */
export async function playUntil(page: string, number: number, given: Names, until: (made: Names) => Promise<unknown>) {
  const before = process.listeners('SIGTERM')
  const played = play(page, number, given)
  played.catch(() => {}) // awaited below, unless `until` fails
  try {
    const made = eventually('it runs', () => (globalThis as Names)['made'])
    await Promise.race([made.then(until), played])
  } finally {
    const its = process.listeners('SIGTERM').filter((listener) => !before.includes(listener))
    for (const listener of its) {
      listener('SIGTERM')
      process.off('SIGTERM', listener)
    }
    await played
  }
}

function sourceOf(name: string): string {
  const { default: built } = manifest().exports[name.replace('waybill', '.')]!
  return join(root, built.replace('./dist/', 'src/').replace(/\.js$/, '.ts'))
}

export interface Stage {
  readonly url: string
  readonly pool: pg.Pool
  readonly db: Postgres<pg.PoolClient>
}

/** A database of one's own, with tables. */
export async function onPostgres(
  work: (stage: Stage) => Promise<void>,
  options: Omit<PostgresOptions<pg.Pool>, 'pool'> = {},
): Promise<void> {
  const { url, drop } = await freshDatabase()
  const pool = new pg.Pool({ connectionString: url, max: 30 })
  try {
    const db = postgres({ pool, ...options })
    await db.migrate()
    await work({ url, pool, db })
  } finally {
    await pool.end()
    await drop()
  }
}

/** Enqueues orders, each in its own key. */
export async function place({ db }: Pick<Stage, 'db'>, ...orders: readonly string[]): Promise<void> {
  const events = orders.map((orderId) => OrderPlaced({ orderId, total: 30 }))
  await db.withTransaction(async (tx) => {
    for (const one of events) await db.outbox.enqueue(tx, one, { key: one.data.orderId })
  })
}
