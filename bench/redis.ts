/**
 * Redis Streams: publishing and consuming against bare loops on the same client, that do the same work with one
 * connection and nothing else: no fencing, no retries, no order. One private server without AOF, so that the disk does
 * not decide.
 */
import { Redis } from 'ioredis'
import { Flow, Message, type RawMessage } from 'waybill'
import { redisStreams } from 'waybill/redis-streams'
import { redis } from '../scripts/services/kinds/redis.ts'
import { startPrivate } from '../scripts/services/provision.ts'
import { openRun } from '../scripts/services/run.ts'
import { stopAll } from '../scripts/services/server.ts'
import { interleave, pairedRatio, type Sample, summary } from './support/measure.ts'
import { atLeast, type Bench, type Row, round } from './support/report.ts'

const ROUNDS = 10
const BATCH = 500
const READ = 1000
/** Batches under way at once, for both. */
const AT_ONCE = 2

interface Sizes {
  readonly publish: number
  readonly consume: number
}

function messageOf(i: number): RawMessage {
  const attributes = {
    id: `0190a1b2-0000-7000-8000-${String(i).padStart(12, '0')}`,
    source: '/orders',
    type: 'order.placed',
    time: '2026-01-01T00:00:00Z',
    extensions: { partitionkey: `customer-${i % 2000}` },
  }
  return new Message(attributes, JSON.stringify({ order: `o-${i}`, total: i % 100, note: 'x'.repeat(120) }), 'json')
}

function textOf({ id, source, type, time, extensions, data }: RawMessage): string {
  return `{"specversion":"1.0","id":"${id}","source":"${source}","type":"${type}","time":"${time}","partitionkey":"${extensions['partitionkey']}","data":${data}}`
}

/** Runs `work` for every batch, some at a time. */
async function inBatches(messages: readonly RawMessage[], work: (batch: readonly RawMessage[]) => Promise<unknown>) {
  let from = 0
  const lane = async () => {
    while (from < messages.length) {
      const batch = messages.slice(from, from + BATCH)
      from += BATCH
      await work(batch)
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, lane))
}

async function barePublish(client: Redis, stream: string, messages: readonly RawMessage[]): Promise<void> {
  await inBatches(messages, async (batch) => {
    const pipeline = client.pipeline()
    for (const message of batch) pipeline.xadd(stream, '*', 'event', textOf(message))
    for (const [error] of (await pipeline.exec())!) if (error) throw error
  })
}

type Entries = [id: string, fields: string[]][]

/** Reads the next while the last are acknowledged. */
async function bareConsume(client: Redis, stream: string, group: string, count: number): Promise<void> {
  let handled = 0
  let acked: Promise<unknown> = Promise.resolve()
  while (handled < count) {
    const args = ['COUNT', READ, 'BLOCK', 1000, 'STREAMS', stream, '>'] as const
    const reply = (await client.xreadgroup('GROUP', group, 'bare', ...args)) as [string, Entries][] | null
    await acked
    const entries = reply?.[0]?.[1] ?? []
    for (const [, [, text]] of entries) if (JSON.parse(text!).specversion !== '1.0') throw new Error('not an event')
    handled += entries.length
    acked = client.xack(stream, group, ...entries.map(([id]) => id))
  }
  await acked
}

async function ourConsume(client: Redis, stream: string, group: string, count: number): Promise<void> {
  const broker = redisStreams({ client })
  let finish = () => {}
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  let handled = 0
  const each = () => {
    handled++
    if (handled === count) finish()
  }
  const from = broker.source({ stream, group, batch: READ / 2 })
  const room = { concurrency: READ, take: READ, buffer: { count: 4 * READ } }
  const flow = new Flow({ name: 'bench', from, step: { each }, ...room })
  await flow.start()
  await finished
  await flow.stop()
  await broker.close()
}

function row(what: string, count: number, samples: Record<'bare' | 'ours', Sample[]>): { row: Row; ratio: number } {
  const rate = (side: 'bare' | 'ours') => samples[side].map(({ wallMs }) => (count * 1000) / wallMs)
  const ratio = pairedRatio(rate('ours'), rate('bare'))
  const cells = {
    what,
    messages: count,
    'bare /s': Math.round(summary(rate('bare')).median),
    'ours /s': Math.round(summary(rate('ours')).median),
    ratio: round(ratio.median),
    spread: `${round(ratio.low)}…${round(ratio.high)}`,
  }
  return { row: cells, ratio: ratio.median }
}

async function publishing(client: Redis, { publish: count }: Sizes) {
  const messages = Array.from({ length: count }, (_, i) => messageOf(i))
  const publisher = redisStreams({ client }).publisher({ stream: 'ours' })
  const never = new AbortController().signal
  const ours = () =>
    inBatches(messages, async (batch) => {
      for (const { kind } of await publisher.publish(batch, never)) if (kind !== 'ok') throw new Error(kind)
    })
  const samples = await interleave(
    {
      bare: async () => {
        await client.del('bare')
        await barePublish(client, 'bare', messages)
      },
      ours: async () => {
        await client.del('ours')
        await ours()
      },
    },
    { rounds: ROUNDS, warmUp: 2 },
  )
  await publisher.close!()
  return row(`publish, batches of ${BATCH}`, count, samples)
}

async function consuming(client: Redis, { consume: count }: Sizes) {
  await client.del('read')
  await barePublish(
    client,
    'read',
    Array.from({ length: count }, (_, i) => messageOf(i)),
  )
  let groups = 0
  const group = async (work: (name: string) => Promise<void>) => {
    const name = `g${++groups}`
    await client.xgroup('CREATE', 'read', name, '0')
    await work(name)
    await client.xgroup('DESTROY', 'read', name)
  }
  const samples = await interleave(
    {
      bare: () => group((name) => bareConsume(client, 'read', name, count)),
      ours: () => group((name) => ourConsume(client, 'read', name, count)),
    },
    { rounds: ROUNDS, warmUp: 2 },
  )
  return row(`consume and ack, reads of ${READ}`, count, samples)
}

export const bench: Bench = async ({ flags }) => {
  const sizes = flags.includes('--quick')
    ? { publish: 20_000, consume: 50_000 }
    : { publish: 100_000, consume: 200_000 }
  const run = await openRun()
  const server = await startPrivate(redis, { run: run.dir, settings: { appendonly: 'no' } })
  const client = new Redis(server.url)
  try {
    const published = await publishing(client, sizes)
    const consumed = await consuming(client, sizes)
    return {
      results: [published.row, consumed.row],
      goals: [atLeast('redis.publish/bare', 0.8, published.ratio), atLeast('redis.consume/bare', 0.8, consumed.ratio)],
      versions: { redis: server.version },
    }
  } finally {
    client.disconnect()
    await stopAll(server)
    await run.close()
  }
}
