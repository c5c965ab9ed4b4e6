/** The processes of a kill test: each has a store as its JOB says, and a broker that its own file opens. */
import { Redis as IoRedis } from 'ioredis'
import pg from 'pg'
import type { OutboxReader, ReaderKind } from '../../src/adapter.ts'
import {
  type ConsumeOptions,
  event,
  type Publisher,
  Relay,
  Router,
  type Source,
  transactional,
} from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { redis } from '../../src/redis/index.ts'

const Placed = event<{ n: number }>('order.placed')

/** Of the broker; what the place of the test says beside its URL is a string too. */
export const job = JSON.parse(process.env['JOB'] ?? '{}') as { url: string } & Record<string, string>

interface Runnable {
  start(): Promise<unknown>
  stop(): Promise<unknown>
}

interface Store {
  readonly outbox: OutboxReader
  /** Notes one effect per message, with an inbox. */
  readonly billing: Router
  close(): Promise<unknown>
}

function store(): Store {
  if (job['database'] !== undefined) {
    const pool = new pg.Pool({ connectionString: job['database'] })
    const db = postgres({ pool })
    const billing = new Router('billing').use(transactional(db)).on(Placed, async ({ id, key, data }, { tx }) => {
      await tx.query('INSERT INTO effects (event_id, key, n) VALUES ($1, $2, $3)', [id, key, data.n])
    })
    return { outbox: db.outbox, billing, close: () => pool.end() }
  }
  const client = new IoRedis(job['redis']!, { lazyConnect: true })
  const db = redis({ client, tag: job['tag']!, inbox: { lease: '2s' }, outbox: { kind: 'stored' } })
  const billing = new Router('billing').use(transactional(db)).on(Placed, async ({ id, key, data }, { tx }) => {
    tx.rpush(db.key('effects'), JSON.stringify({ id, key, n: data.n }))
  })
  return { outbox: db.outbox, billing, close: () => db.stop() }
}

/** Consumes until SIGTERM. */
export async function bill(from: Source, close: () => unknown, options: ConsumeOptions = {}): Promise<void> {
  const { billing, close: closeStore } = store()
  await run(billing.consume(from, { poll: 100, maxPoll: 500, ...options }), async () => {
    await close()
    await closeStore()
  })
}

/** Relays until SIGTERM. */
export async function relayInto(to: Publisher, close: () => unknown): Promise<void> {
  const { outbox: from, close: closeStore } = store()
  const reader = job['reader'] as ReaderKind
  await run(new Relay({ from, to, reader, lease: '2s', poll: '50ms', batch: 50, maxBatch: 50 }), async () => {
    await close()
    await closeStore()
  })
}

async function run(runs: Runnable, close: () => Promise<void>): Promise<void> {
  await runs.start()
  process.once('SIGTERM', async () => {
    await runs.stop()
    await close()
  })
  console.log('ready')
}
