import { Redis } from 'ioredis'
import { describe, expect, test } from 'vitest'
import { OK, type OutboxReader, type Outcome } from '../../src/adapter.ts'
import { telemetry } from '../../src/core/index.ts'
import { event, type Message, Relay, type RelayOptions } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { redis } from '../../src/redis/index.ts'
import { seededRandom } from '../../src/testing/index.ts'
import { outboxOn } from '../postgres/support.ts'
import { freshTag } from '../redis/support.ts'
import { scale } from '../support/scale.ts'
import { describeWith, service } from '../support/services.ts'

const Placed = event<{ n: number }>('order.placed')
const EVENTS = 300
const KEYS = 5
const runs = scale({ test: 1, full: 15, torture: 1000 })

type SeededRandom = ReturnType<typeof seededRandom>

/** An outbox for one run. */
interface World {
  readonly outbox: OutboxReader
  enqueue(events: readonly Message[]): Promise<unknown>
  end(): Promise<unknown>
}

/** A destination that fails three of ten, at random, and remembers the rest; of a key nothing goes past a failed one. */
function unreliable(random: SeededRandom, arrived: (key: string, n: number) => void) {
  return {
    name: 'unreliable',
    features: {},
    async publish(messages: readonly Message[]): Promise<Outcome[]> {
      await new Promise((resolve) => setTimeout(resolve, random.integer(6)))
      const failed = new Set<string>()
      return messages.map(({ key = '', data }) => {
        if (failed.has(key) || random.next() < 0.3) {
          failed.add(key)
          return { kind: 'failed', error: new Error('by chance') }
        }
        arrived(key, JSON.parse(data as string).n)
        return OK
      })
    },
  }
}

/** What came before something older of its key, or twice. */
async function overtaken(world: World, seed: number, options: Partial<RelayOptions>): Promise<string[]> {
  const random = seededRandom(seed)
  const last = new Map<string, number>()
  const seen = new Set<number>()
  const problems: string[] = []
  let left = EVENTS
  let lost = false
  const deaf = telemetry['flow.lost'].subscribe(() => {
    lost = true
  })
  let finish!: () => void
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  const to = unreliable(random, (key, n) => {
    if (seen.has(n)) {
      // Only what was in flight when a relay lost its right may come twice: the machine was too slow for the lease.
      if (!lost) problems.push(`seed ${seed}: ${key}: ${n} again`)
      return
    }
    const before = last.get(key) ?? -1
    if (before > n) problems.push(`seed ${seed}: ${key}: ${n} after ${before}`)
    seen.add(n)
    last.set(key, n)
    left--
    if (left === 0) finish()
  })
  const started = async () => {
    const relay = new Relay({
      from: world.outbox,
      to,
      retry: { attempts: 1000, backoff: { min: 1, max: 20, jitter: 0 } },

      poll: 5,
      maxPoll: 20,
      lease: 3000,
      batch: 1 + random.integer(6),
      maxBatch: 6 + random.integer(8),
      concurrency: 1 + random.integer(4),
      ...options,
    })
    await relay.start()
    return relay
  }
  const relays: Relay[] = []
  try {
    for (let i = 0; i < (options.shards ?? 1); i++) relays.push(await started())
    // They come while others are sent, fail and wait; now and then one relay leaves, and another comes.
    for (let n = 0; n < EVENTS; ) {
      const count = Math.min(1 + random.integer(9), EVENTS - n)
      await world.enqueue(Array.from({ length: count }, () => Placed({ n: n++ }, { key: `k${random.integer(KEYS)}` })))
      if (random.next() >= 0.05) continue
      await relays.shift()!.stop()
      relays.push(await started())
    }
    await finished
  } finally {
    await Promise.all(relays.map((relay) => relay.stop()))
    await world.end()
    deaf()
  }
  return problems
}

function runAll(name: string, open: () => Promise<World>, options: Partial<RelayOptions> = {}): void {
  test(`${name}: in order by key and once, whatever fails`, { timeout: 30_000 + runs * 10_000 }, async () => {
    const first = Date.now() % 1_000_000
    for (let run = 0; run < runs; run++) expect(await overtaken(await open(), first + run, options)).toEqual([])
  })
}

describe('in memory', () => {
  runAll('owner', async () => {
    const db = memory()
    return {
      outbox: db.outbox,
      enqueue: (events) => db.withTransaction((tx) => db.outbox.enqueue(tx, events)),
      end: async () => {},
    }
  })
})

describeWith(['postgres'], 'on PostgreSQL', () => {
  runAll('owner', outboxOn)
  runAll('owner that removes', outboxOn, { deleteOnPublish: true })
  runAll('three shards', outboxOn, { shards: 3 })
})

describeWith(['redis'], 'on Redis', () => {
  runAll('script outbox', async () => {
    const client = new Redis(service('redis').url)
    const db = redis({ client, tag: freshTag(), outbox: { kind: 'stored' } })
    const { outbox } = db
    return {
      outbox,
      enqueue: (events) => db.withTransaction((tx) => outbox.enqueue(tx, events)),
      async end() {
        await db.stop()
        client.disconnect()
      },
    }
  })
})
