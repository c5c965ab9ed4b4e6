import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { keyOf, order, placed } from './pg-events.ts'
import { type BenchServer, cores, pgbench } from './pg-server.ts'

/** A pgbench script, and the texts that its variables stand for. */
export interface Script {
  readonly script: string
  readonly variables: Readonly<Record<string, string>>
}

/**
 * The statement and values that enqueue() itself sends, taken from the package as it is: it is called with a
 * transaction that only writes down what it is asked.
 */
async function sent(wake: 'flag' | 'off'): Promise<{ text: string; values: (string | null)[] }> {
  const pool = new pg.Pool({ max: 1 })
  const client = new pg.Client()
  let said: { text: string; values: (string | null)[] } | undefined
  const query = async (text: string, values: (string | null)[]) => {
    said = { text, values }
    return { rows: [{ sequence: '1' }], rowCount: 1, command: 'SELECT' }
  }
  Object.assign(client, { query })
  await postgres<unknown>({ pool: pool as never, outbox: { wake } }).outbox.enqueue(client as never, placed(1))
  return said!
}

/**
 * One event in the transaction `around` makes. Its id must be new each time, and in the order of time as those that the
 * package makes: a count and a random number, each of 16 digits, read as the hexadecimal digits of a UUID.
 */
export async function enqueueScript(options: { wake: 'flag' | 'off'; before?: string }): Promise<Script> {
  const { text, values } = await sent(options.wake)
  const variables: Record<string, string> = { n: String(1_000_000_000_000_000 + (Date.now() % 1e9) * 1e5) }
  const statement = text.replaceAll(/\$(\d+)::text/g, (_, digits: string) => {
    const place = Number(digits)
    const value = values[place - 1]
    if (place === 1) return '(:n::text || :r::text)'
    if (value === null || value === undefined) return 'NULL::text'
    if (value === '') return `''::text`
    variables[`v${place}`] = value
    return `:v${place}::text`
  })
  const ids = '\\set n :n + 1\n\\set r random(1000000000000000, 9999999999999999)\n'
  return { script: transaction(`${ids}`, options.before, statement), variables }
}

export function plainScript(options: { bytes: number; before?: string }): Script {
  const insert = 'INSERT INTO plain (body) VALUES (:body::text) RETURNING id'
  return { script: transaction('', options.before, insert), variables: { body: 'x'.repeat(options.bytes) } }
}

export function graphileScript(): Script {
  const payload = JSON.stringify({ key: keyOf(1), data: order(1) })
  const add = `SELECT graphile_worker.add_job('relay', :payload::text::json)`
  return { script: transaction('', undefined, add), variables: { payload } }
}

function transaction(set: string, before: string | undefined, statement: string): string {
  const body = before === undefined ? '' : `${before};\n`
  return `${set}BEGIN;\n${body}${statement.replaceAll(/\s*\n\s*/g, ' ')};\nCOMMIT;\n`
}

/** Transactions per second over some seconds. */
export async function pgbenchRate(
  server: BenchServer,
  database: string,
  { script, variables }: Script,
  options: { clients: number; seconds: number },
): Promise<number> {
  const folder = await mkdtemp(join(tmpdir(), 'waybill-pgbench-'))
  try {
    const file = join(folder, 'script.sql')
    await writeFile(file, script)
    const { clients, seconds } = options
    const args = ['-n', '-M', 'prepared', '-c', String(clients), '-j', String(cores), '-T', String(seconds), '-f', file]
    for (const [name, value] of Object.entries(variables)) args.push('-D', `${name}=${value}`)
    const output = await collect(pgbench(server), [...args, server.url(database)])
    const rate = /tps = ([\d.]+) \(without/.exec(output)?.[1]
    if (rate === undefined || !/failed transactions: 0 /.test(output)) throw new Error(`pgbench: ${output}`)
    return Number(rate)
  } finally {
    await rm(folder, { recursive: true })
  }
}

async function collect(file: string, args: string[]): Promise<string> {
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      output += chunk
    })
  }
  const code = await new Promise((resolve) => child.once('close', resolve))
  if (code !== 0) throw new Error(`${file} ended with ${code}: ${output.slice(-2000)}`)
  return output
}
