import { isDeepStrictEqual } from 'node:util'
import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import type { Message, RawMessage } from '../../src/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { BrokerProjector } from '../../src/projection/index.ts'
import { type BrokerFactory, seededRandom } from '../../src/testing/index.ts'
import { factory as rabbitmq } from '../brokers/rabbitmq/support.ts'
import { ioredis, factory as streams } from '../brokers/redis-streams/support.ts'
import { scale } from '../support/scale.ts'
import { describeWith, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { changed, created, fold, itemAdded, orders, renamed, world } from './support.ts'

const WRITES = scale({ test: 20, full: 200, torture: 2000 })
const LONG = { timeout: scale({ test: 60_000, full: 120_000, torture: 3_600_000 }) }
const BROKERS: [string, () => BrokerFactory][] = [
  ['RabbitMQ', () => rabbitmq('rabbitmq', () => service('rabbitmq').url)],
  ['Redis Streams', () => streams('streams', () => ioredis(service('redis').url))],
]

describeWith(['postgres', 'rabbitmq', 'redis'], 'a projection from a real broker', () => {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  test.each(BROKERS)(
    '%s: duplicates, replays, lookups that fail: the view is the fold of what was committed',
    LONG,
    async (_, make) => {
      const at = await world('postgres', { outbox: { log: true } })
      ends.push(() => at.end())
      const broker = await make().create()
      ends.push(() => broker.close())
      // Fewer connections than events in hand: none may wait for a second one while it has the first.
      const pool = new pg.Pool({ connectionString: at.url, max: 2 })
      pool.on('error', () => {})
      ends.push(() => pool.end())
      const store = postgres({ pool, projections: true })

      const random = seededRandom(16)
      const pick = <T>(list: readonly T[]): T => list[random.integer(list.length)]!
      const asked = new Set<string>()
      const names = new Map<string, string>()
      // The first time each buyer is asked for, nobody answers: a retry by the broker would come after later events of the key.
      const nameOf = (buyerId: string) => names.get(buyerId) ?? `name of ${buyerId}`
      const find = (buyerId: string) => {
        if (asked.has(buyerId)) return nameOf(buyerId)
        asked.add(buyerId)
        throw new Error('no answer')
      }
      const projector = new BrokerProjector({
        store,
        from: broker.source('view'),
        projection: orders(find),
        parked: { every: 20, backoff: { min: 20, max: 50, jitter: 0 } },
      })
      ends.push(() => projector.parked.stop())
      ends.push(() => projector.stop())
      await projector.parked.start()
      await projector.start()
      await eventually('it takes', () => projector.status().state === 'running')

      // Whatever was sent may come again, at any time.
      const sent: RawMessage[] = []
      const twice = {
        name: 'twice',
        features: broker.publisher.features,
        async publish(messages: readonly RawMessage[], signal: AbortSignal) {
          const outcomes = await broker.publisher.publish(messages, signal)
          sent.push(...messages)
          await broker.publisher.publish([pick(sent)], signal)
          return outcomes
        },
      }
      const relay = new Relay({ from: at.db.outbox, to: twice, poll: '20ms', maxPoll: '50ms' })
      ends.push(() => relay.stop())
      await relay.start()

      const write = (...events: Message[]) => at.db.withTransaction((tx) => at.db.outbox.enqueue(tx, events))
      const audit = { by: 'test', note: 'again' }
      const keys = ['a', 'b', 'c', 'd', 'e']
      const buyerOf = (key: string) => `b${keys.indexOf(key) % 3}`
      const known: string[] = []
      const some = (): Message => {
        const key = pick(keys)
        if (known.includes(key)) return pick([() => changed(key, `s${random.integer(9)}`), () => itemAdded(key, 1)])()
        known.push(key)
        return created(key, { buyerId: buyerOf(key) })
      }
      for (let n = 0; n < WRITES; n++) {
        await write(some(), some())
        if (n % 10 === 9) await at.db.outbox.admin.replay({ key: pick(keys) }, audit)
      }
      const history = async () => {
        const { events } = await at.db.log.read(0n, 10_000)
        return events.map(({ type, message }) => ({ type, data: JSON.parse(String(message!.data)) }))
      }
      const view = async (): Promise<Record<string, unknown>[]> => {
        const rows = await at.rows().catch(() => [])
        return rows.map(({ created_at, amount, ...row }) => ({ ...row, amount: Number(amount) }))
      }
      const settled = async (last: string) => {
        await write(created(last))
        const is = () => view().then((rows) => rows.some(({ order_id }) => order_id === last))
        await eventually('the last is there', is, { limit: 30_000 })
        await eventually(
          'nothing is under way',
          async () => {
            return projector.status().unsettled === 0 && (await store.projections.parked({}, {})).length === 0
          },
          { limit: 30_000 },
        )
      }
      // What is replayed may still be in the broker.
      const isFold = async () => {
        const expected = fold(await history(), nameOf)
        const is = () => view().then((rows) => isDeepStrictEqual(rows, expected))
        await eventually('the view is the fold', is, { limit: 30_000, seen: async () => view() }).catch(() => {})
        expect(await view()).toEqual(expected)
      }
      await settled('x')
      await isFold()
      for (const buyer of ['b0', 'b1', 'b2']) names.set(buyer, `new ${buyer}`)
      await write(...['b0', 'b1', 'b2'].map((buyer) => renamed(buyer, nameOf(buyer))))
      for (const key of keys) await at.db.outbox.admin.replay({ key }, audit)
      await settled('y')
      await isFold()
      expect(sent.length).toBeGreaterThan(WRITES)
      expect(sent.every(({ extensions }) => /^\d{19}$/.test(String(extensions['sequence'])))).toBe(true)
    },
  )
})
