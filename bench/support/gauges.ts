import pg from 'pg'
import * as client from 'prom-client'
import { Relay, Unavailable } from 'waybill'
import { logTo, recordMetrics } from 'waybill/observability'
import { postgres } from 'waybill/postgres'
import { type Contest, fill, say } from './pg-contest.ts'

export interface Scraped {
  readonly what: string
  /** Milliseconds. */
  readonly median: number
  readonly slowest: number
  /** Which numbers were estimates in any scrape. */
  readonly estimated: string
}

/** The states of rows, by their number `n`. A held one has the key of the dead one before it. */
const SHAPES: Readonly<Record<string, string>> = {
  'none has gone out': `'ready'`,
  'all but a few are published': `CASE WHEN n % 100000 = 0 THEN 'ready' ELSE 'published' END`,
  // Just so many of ten million that they are counted one by one.
  'a twelfth ready, dead, scheduled, held': `CASE n % 12 WHEN 0 THEN 'ready' WHEN 1 THEN 'dead' WHEN 2 THEN 'held'
    WHEN 3 THEN 'scheduled' ELSE 'published' END`,
  // Of ten million each has 950,000: just below what is counted.
  'four states of nearly a tenth each': `CASE WHEN n % 1000 >= 380 THEN 'published' ELSE
    (ARRAY['ready', 'dead', 'held', 'scheduled'])[n % 4 + 1] END`,
}

/**
 * Rows like those that enqueue wrote; ten million of them by enqueue would take a quarter of an hour. Ids in their order,
 * and no log of them: for gauges that is all the same.
 */
const COPIES = `INSERT INTO outbox (event_id, tenant_id, topic, source, event_type, event_version, attributes, payload,
    state, key, available_at, published_at)
  SELECT lpad(to_hex(n), 32, '0')::uuid, tenant_id, topic, source, event_type, event_version, attributes, payload,
    state, CASE WHEN state IN ('dead', 'held') THEN 'key-' || n / 12 ELSE key END,
    CASE state WHEN 'scheduled' THEN clock_timestamp() + interval '1 day' END,
    CASE state WHEN 'published' THEN clock_timestamp() END
  FROM (SELECT first.*, n, {{state}} AS state FROM generate_series($1::int, $2::int) AS n
    JOIN (SELECT sequence AS number, tenant_id, topic, source, event_type, event_version, attributes, payload, key
      FROM outbox WHERE sequence <= 1000) AS first ON number = n % 1000 + 1) AS made`

/** Scrapes a process that leads an outbox of so many rows, and whose broker is away. */
export async function gaugeRows(contest: Contest, rows: number, times: number): Promise<Scraped[]> {
  const { server, databases } = contest
  const scraped: Scraped[] = []
  for (const [what, state] of Object.entries(SHAPES)) {
    say(`${what}: writing ${rows} events`)
    await databases.template('gauges', (url) => write(url, rows, COPIES.replace('{{state}}', state)))
    say(`${what}: ${times} scrapes`)
    scraped.push({ what, ...(await scrapes(server.url('gauges'), times)) })
    await databases.drop('gauges')
  }
  return scraped
}

/** Indexes are made when all is there, which takes a third of the time. */
async function write(url: string, rows: number, copies: string): Promise<void> {
  await fill(url, 1000)
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await client.query('ALTER TABLE outbox SET UNLOGGED')
    await client.query(`SET maintenance_work_mem = '512MB'`)
    const { rows: indexes } = await client.query(
      `SELECT indexname AS name, indexdef AS text FROM pg_indexes WHERE tablename = 'outbox' AND indexname <> 'outbox_pkey'`,
    )
    for (const { name } of indexes) await client.query(`DROP INDEX "${name}"`)
    for (let from = 1000; from < rows; from += 1_000_000) {
      const until = Math.min(from + 1_000_000, rows)
      await client.query(copies, [from, until - 1])
      say(`${until} of ${rows}`)
    }
    for (const { text } of indexes) await client.query(text)
    say('indexes')
  } finally {
    await client.end()
  }
}

async function scrapes(url: string, times: number): Promise<Omit<Scraped, 'what'>> {
  const pool = new pg.Pool({ connectionString: url, max: 10 })
  const registry = new client.Registry()
  const stops = [recordMetrics({ client: client as never, registry: registry as never }), logTo(() => {})]
  const to = async () => {
    throw new Unavailable('the broker is away')
  }
  const relay = new Relay({ from: postgres({ pool }).outbox, to })
  await relay.start()
  const took: number[] = []
  const estimated = new Set<string>()
  try {
    // Not the first ones: nothing is in memory then, neither here nor in the server.
    let tries = 20 + 2 * times
    for (let i = -3; i < times; ) {
      if (tries-- === 0) throw new Error('the gauges did not come within a scrape')
      const began = performance.now()
      const text = await registry.metrics()
      const ms = performance.now() - began
      // A count is shared for twenty times as long as it took: each of these counts anew, as one every 15 s does.
      await new Promise((resolve) => setTimeout(resolve, Math.max(100, 25 * ms)))
      if (!/^outbox_pending_count\{/m.test(text)) continue
      if (i++ < 0) continue
      took.push(ms)
      for (const [, state] of text.matchAll(/^outbox_count_estimated\{.*state="(\w+)".*\} 1$/gm)) estimated.add(state!)
    }
  } finally {
    await relay.stop()
    for (const stop of stops) stop()
    await pool.end()
  }
  took.sort((a, b) => a - b)
  return { median: took[took.length >> 1]!, slowest: took.at(-1)!, estimated: [...estimated].join(' ') || 'none' }
}
