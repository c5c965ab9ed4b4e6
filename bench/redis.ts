/**
 * Redis: streams, units of work and the script outbox against bare loops on the same client, that do the same work with
 * one connection and nothing else: no fencing, no retries; and consuming with an inbox, and relaying, against BullMQ. One
 * private server without AOF, so that the disk does not decide. `--quick` for a look, `--only=streams,unit,outbox,bullmq`
 * for some of the parts.
 */
import { Redis } from 'ioredis'
import { Message, type RawMessage } from 'waybill'
import { Flow } from 'waybill/adapter'
import { redisStreams } from 'waybill/redis-streams'
import { redis } from '../scripts/services/kinds/redis.ts'
import { startPrivate } from '../scripts/services/provision.ts'
import { openRun } from '../scripts/services/run.ts'
import { stopAll } from '../scripts/services/server.ts'
import { interleave } from './support/measure.ts'
import { ratioGoal } from './support/pg-rounds.ts'
import { againstBullmq } from './support/redis/bullmq.ts'
import { type Measured, measured, ratesOf } from './support/redis/contest.ts'
import { outboxes } from './support/redis/outbox.ts'
import { unitsOfWork } from './support/redis/unit-of-work.ts'
import type { Bench, BenchOptions, Goal, Row } from './support/report.ts'

const BATCH = 500
const READ = 1000
/** Batches under way at once, for both. */
const AT_ONCE = 2

interface Sizes {
  readonly publish: number
  readonly consume: number
  readonly units: number
  readonly outbox: number
  readonly inbox: number
  readonly rounds: number
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

async function publishing(client: Redis, { publish: count, rounds }: Sizes) {
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
    { rounds },
  )
  await publisher.close!()
  return measured(`publish, batches of ${BATCH}`, count, ratesOf(count, samples), {
    against: 'bare XADD',
    ours: `publisher.publish, ${AT_ONCE} batches at once`,
    theirs: `ioredis pipelines, ${AT_ONCE} at once`,
  })
}

async function consuming(client: Redis, { consume: count, rounds }: Sizes) {
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
    { rounds },
  )
  return measured(`consume and ack, reads of ${READ}`, count, ratesOf(count, samples), {
    against: 'bare XREADGROUP',
    ours: `a flow, ${READ} at once, reads of ${READ / 2}, batched XACK`,
    theirs: `reads of ${READ}, one XACK for each, beside the next read`,
  })
}

function sizesOf({ tiny, quick }: BenchOptions): Sizes {
  if (tiny) {
    return { publish: 2000, consume: 2000, units: 1000, outbox: 2000, inbox: 2000, rounds: 1 }
  }
  if (quick) {
    return { publish: 20_000, consume: 50_000, units: 10_000, outbox: 20_000, inbox: 10_000, rounds: 3 }
  }
  return { publish: 100_000, consume: 200_000, units: 50_000, outbox: 100_000, inbox: 50_000, rounds: 10 }
}

export const bench: Bench = async (options) => {
  const { part } = options
  const sizes = sizesOf(options)
  const { rounds } = sizes
  const results: Row[] = []
  const goals: Goal[] = []
  const show = ({ row, ratio }: Measured, name?: string, goal = 0.8) => {
    results.push(row)
    if (name !== undefined) goals.push(ratioGoal(name, goal, ratio))
  }
  const run = await openRun()
  const server = await startPrivate(redis, { run: run.dir, settings: { appendonly: 'no' } })
  const client = new Redis(server.url)
  const versions: Record<string, string> = { redis: server.version }
  try {
    if (part('streams')) {
      show(await publishing(client, sizes), 'redis.publish/bare')
      show(await consuming(client, sizes), 'redis.consume/bare')
    }
    if (part('unit')) {
      show(await unitsOfWork(client, { count: sizes.units, rounds }), 'redis.unit_of_work/bare_multi', 1.5)
    }
    if (part('outbox')) {
      const { enqueue, relay } = await outboxes(client, { count: sizes.outbox, rounds })
      show(enqueue, 'redis.outbox/bare')
      // What states, attempts, retries and repair cost beyond order and leases; the goal is against a peer that has them.
      show(relay)
    }
    if (part('bullmq')) {
      const peer = await againstBullmq(client, server.url, { count: sizes.inbox, rounds })
      Object.assign(versions, peer.versions)
      show(peer.consume, 'redis.consume_inbox/bullmq', 2)
      show(peer.relay, 'redis.outbox_relay/bullmq', 1.3)
    }
    return { results, goals, versions }
  } finally {
    client.disconnect()
    await stopAll(server)
    await run.close()
  }
}
