import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { type Bar, bars } from './svg.ts'

type Row = Readonly<Record<string, string | number>>

/** What `npm run bench -- NAME --json` prints on its last line, as far as charts need it. */
export interface Figures {
  readonly results: readonly Row[]
}

interface Chart {
  readonly title: string
  readonly unit: string
  /** One bar for each line of results, or none. */
  readonly bar: (row: Row) => Bar | undefined
}

/** A bar whose length is what stands in `column`. */
function bar(row: Row, name: string | undefined, column: string, ours = name?.startsWith('Waybill')): Bar | undefined {
  const value = Number(row[column])
  return name === undefined || !Number.isFinite(value) ? undefined : { name, value, ours: ours ?? false }
}

const RELAYS: Record<string, string> = {
  owner: 'Waybill, removes',
  owner_update: 'Waybill, keeps',
  lease: 'Waybill, competing relays',
  bare: 'a bare loop, no guarantees',
  graphile: 'graphile-worker, tuned',
  pg_boss: 'pg-boss, tuned',
  pg_transactional_outbox: 'pg-transactional-outbox',
}

const TRANSACTIONS: Record<string, string> = {
  'business write only': 'the order alone',
  'with plain insert': 'and a plain insert',
  'with event': 'Waybill: and an event',
}

/** How many wait is counted, not named: `1m` of a short run is a tenth of that. */
function pending({ pending: name, rows }: Row): string | undefined {
  const [, count, kind] = /^(\d+) (\w+) first$/.exec(String(name)) ?? []
  if (count !== undefined) return `behind ${Number(count).toLocaleString('en')} ${kind}`
  return /^\d+[km]$/.test(String(name)) ? `${Number(rows).toLocaleString('en')} pending` : undefined
}

const BROKERS: Record<string, string> = {
  rabbitmq: 'RabbitMQ',
  redis: 'Redis Streams',
  nats: 'NATS JetStream',
  kafka: 'Kafka',
  http: 'HTTP',
}

const SAGAS: Record<string, string> = {
  waybill: 'Waybill',
  DBOS: 'DBOS',
  'bare writes, prepared': 'the writes alone',
}

const PROJECTIONS: Record<string, string> = {
  waybill: 'Waybill',
  'bare upsert': 'a bare loop of upserts',
  emmett: 'Emmett',
}

/** By the name of the benchmark. */
export const charts: Record<string, Chart> = {
  relay: {
    title: 'Events per second out of PostgreSQL, one process, a publisher that does nothing',
    unit: '/s',
    bar: (row) => (row['situation'] === 'quiet' ? bar(row, RELAYS[String(row['contestant'])], 'events/s') : undefined),
  },
  enqueue: {
    title: 'Transactions per second that write an order',
    unit: '/s',
    bar: (row) => bar(row, TRANSACTIONS[String(row['transaction'])], 'per second'),
  },
  growth: {
    title: 'Events per second, by what waits in the table',
    unit: '/s',
    bar: (row) => bar(row, pending(row), 'events/s', true),
  },
  latency: {
    title: 'From the commit to the publisher, 99 of 100 events',
    unit: ' ms',
    bar: (row) => bar(row, `${row['events at']}`, 'p99 ms', true),
  },
  brokers: {
    title: 'Against a bare loop with the same guarantees (1 is as fast)',
    unit: '',
    bar: (row) => {
      const broker = BROKERS[String(row['broker'])]
      if (row['contestant'] !== 'ours' || broker === undefined) return undefined
      return bar(row, `${row['what'] === 'publish' ? 'to' : 'from'} ${broker}`, '× bare', true)
    },
  },
  saga: {
    title: 'Sagas of three steps per second, 32 in flight',
    unit: '/s',
    bar: (row) => (row['what'] === '32 in flight' ? bar(row, SAGAS[String(row['contestant'])], 'sagas/s') : undefined),
  },
  projection: {
    title: 'Events per second into a read table',
    unit: '/s',
    bar: (row) => bar(row, PROJECTIONS[String(row['contestant'])], 'events/s'),
  },
}

/** The figures of the last whole run, kept in docs/figures. */
const figuresOf = (name: string): string => fileURLToPath(new URL(`../../docs/figures/${name}.json`, import.meta.url))

/** The chart of a benchmark, where there are figures of it. */
export function chart(name: string, place = figuresOf): string | undefined {
  const file = place(name)
  return existsSync(file) ? drawn(name, JSON.parse(readFileSync(file, 'utf8')) as Figures) : undefined
}

export function drawn(name: string, { results }: Figures): string {
  const { title, unit, bar } = charts[name]!
  const rows = results.flatMap((row) => bar(row) ?? [])
  if (rows.length === 0) throw new Error(`docs/figures/${name}.json has no line that the chart shows`)
  return bars(title, unit, rows)
}
