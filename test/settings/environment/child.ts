/** Imports everything, relays with memory and with PostgreSQL, and tells which variables our files have read meanwhile. */
import { readFileSync } from 'node:fs'

const given = process.env
const DATABASE = given['DATABASE']!
/** Each read, with the file of ours that did it. Drivers read variables of theirs. */
const reads: string[] = []
function noted<T>(what: string, value: T): T {
  // The frames above: this function, the trap, and whoever reads.
  const reader = new Error().stack!.split('\n')[3] ?? ''
  const file = /\/(src\/[^:]+)/.exec(reader)?.[1]
  if (file !== undefined && !reader.includes('node_modules')) reads.push(`${file} ${what}`)
  return value
}
process.env = new Proxy(given, {
  get: (target, name) => noted(String(name), target[String(name)]),
  has: (target, name) => noted(String(name), name in target),
  ownKeys: (target) => noted('all', Reflect.ownKeys(target)),
  getOwnPropertyDescriptor: (target, name) => noted(String(name), Reflect.getOwnPropertyDescriptor(target, name)),
})

const text = readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')
const { exports } = JSON.parse(text) as { exports: Record<string, { default?: string } | string> }
const paths = Object.values(exports).flatMap((one) => (typeof one === 'string' ? [] : [one.default!]))
const files = paths.map((path) => path.replace('./dist/', '../../../src/').replace(/\.js$/, '.ts'))
for (const file of files) await import(file)

const { default: pg } = await import('pg')
const { Cleaner, event, Relay } = await import('../../../src/index.ts')
const { memory } = await import('../../../src/memory/index.ts')
const { logTo, recordMetrics } = await import('../../../src/observability/index.ts')
const { postgres } = await import('../../../src/postgres/index.ts')
const { settingsFrom } = await import('../../../src/settings/index.ts')
const client = await import('prom-client')

logTo(() => {})
recordMetrics({ client })
const pool = new pg.Pool({ connectionString: DATABASE })
const stored = postgres({ pool })
await stored.migrate()
const published: string[] = []
for (const db of [memory(), stored] as ReturnType<typeof memory>[]) {
  await db.withTransaction((tx) => db.outbox.enqueue(tx, event<{ n: number }>('order.placed')({ n: 1 })))
  const relay = new Relay({ from: db.outbox, to: async ({ type }) => void published.push(type) })
  await relay.runOnce()
  await relay.stop()
  await new Cleaner({ of: db.outbox.admin as never, retention: 0 }).runOnce()
}
await client.register.metrics()
await pool.end()
const before = [...reads]
const asked = settingsFrom(process.env)
console.log(JSON.stringify({ files: files.length, published, before, after: reads.length - before.length, asked }))
