import { afterEach, expect, test } from 'vitest'
import { z } from 'zod'
import { event } from '../../src/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { BrokerProjector, patch, patchWhere, projection, put, recentlyWritten } from '../../src/projection/index.ts'
import { factory as rabbitmq } from '../brokers/rabbitmq/support.ts'
import { ioredis, nodeRedis } from '../brokers/redis-streams/support.ts'
import { describeWith, service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { world } from './support.ts'

const OrderCreated = event(
  'order.created',
  z.object({
    ...{ orderId: z.uuid(), buyerId: z.uuid(), merchantId: z.uuid(), merchantName: z.string() },
    ...{ status: z.string(), amount: z.number(), itemCount: z.number(), createdAt: z.string() },
  }),
)
const OrderStatusChanged = event(
  'order.status_changed',
  z.object({ orderId: z.uuid(), newStatus: z.string(), occurredAt: z.string() }),
)
const UserNameChanged = event('user.name_changed', z.object({ userId: z.uuid(), newName: z.string() }))

const create = (table: string) => [
  `CREATE TABLE ${table} (
    order_id uuid PRIMARY KEY, buyer_id uuid NOT NULL, buyer_name text NOT NULL, merchant_id uuid NOT NULL,
    merchant_name text NOT NULL, status text NOT NULL, amount bigint NOT NULL, item_count int NOT NULL,
    created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL)`,
  `CREATE INDEX ON ${table} (buyer_id, created_at DESC, order_id DESC)`,
]

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

describeWith(['postgres', 'rabbitmq'], 'a list of orders without joins, kept by a consumer of a broker', () => {
  test('an order is created with a name that another service knows; its status changes; its buyer gets another name', async () => {
    const at = await world('postgres', { outbox: { log: true } })
    ends.push(() => at.end())
    const broker = await rabbitmq('rabbitmq', () => service('rabbitmq').url).create()
    ends.push(() => broker.close())
    const users = { calls: 0, name: 'Ann' }
    const getUser = async (id: string) => {
      if (users.calls++ === 0) throw new Error(`user service: 503 for ${id}`)
      return { name: users.name }
    }
    const view = projection('order_list_view', { version: 1, table: 'order_list_view', key: 'order_id', create })
      .on(OrderCreated, { enrich: ({ data }) => getUser(data.buyerId) }, ({ data }, buyer) =>
        put(data.orderId, {
          ...{ buyer_id: data.buyerId, buyer_name: buyer.name, merchant_id: data.merchantId },
          ...{ merchant_name: data.merchantName, status: data.status, amount: data.amount },
          ...{ item_count: data.itemCount, created_at: data.createdAt, updated_at: data.createdAt },
        }),
      )
      .on(OrderStatusChanged, ({ data }) =>
        patch(data.orderId, { status: data.newStatus, updated_at: data.occurredAt }),
      )
      .on(UserNameChanged, ({ data }) => patchWhere({ buyer_id: data.userId }, { buyer_name: data.newName }))
    const backoff = { min: 20, max: 50, jitter: 0 }
    const options = { store: at.db, from: broker.source('view'), projection: view, parked: { every: 20, backoff } }
    const projector = new BrokerProjector(options)
    ends.push(() => projector.parked.stop())
    ends.push(() => projector.stop())
    await projector.parked.start()
    await projector.start()
    await eventually('it takes', () => projector.status().state === 'running')
    const relay = new Relay({ from: at.db.outbox, to: broker.publisher, poll: '20ms', maxPoll: '50ms' })
    ends.push(() => relay.stop())
    await relay.start()

    const [orderId, buyerId, merchantId] = [crypto.randomUUID(), crypto.randomUUID(), crypto.randomUUID()]
    const at0 = '2026-01-01T10:00:00.000Z'
    const order = { orderId, buyerId, merchantId, merchantName: 'Books', amount: 2 ** 40, itemCount: 3, createdAt: at0 }
    const changed = { orderId, newStatus: 'paid', occurredAt: '2026-01-02T10:00:00.000Z' }
    await at.db.withTransaction((tx) =>
      at.db.outbox.enqueue(tx, [
        OrderCreated({ ...order, status: 'new' }, { key: orderId }),
        OrderStatusChanged(changed, { key: orderId }),
      ]),
    )
    const row = async () => (await at.rows().catch(() => []))[0]
    await eventually('it is paid', async () => (await row())?.['status'] === 'paid')
    expect(await row()).toEqual({
      ...{ order_id: orderId, buyer_id: buyerId, buyer_name: 'Ann', merchant_id: merchantId, merchant_name: 'Books' },
      ...{ status: 'paid', amount: String(2 ** 40), item_count: 3 },
      ...{ created_at: new Date(at0), updated_at: new Date(changed.occurredAt) },
    })
    expect(users.calls, 'a lookup that fails is tried again').toBeGreaterThan(1)
    users.name = 'Anna'
    const renamed = UserNameChanged({ userId: buyerId, newName: 'Anna' }, { key: buyerId })
    await at.db.withTransaction((tx) => at.db.outbox.enqueue(tx, renamed))
    await eventually('it has the new name', async () => (await row())?.['buyer_name'] === 'Anna')
  })
})

describeWith(['redis'], 'who has just written, in Redis', () => {
  test.each(['ioredis', 'node-redis'] as const)('%s: a flag per user that Redis forgets after 3 s', async (name) => {
    const { url } = service('redis')
    const looks = ioredis(url)
    ends.push(() => looks.quit())
    const redis = name === 'ioredis' ? ioredis(url) : (nodeRedis(url) as ReturnType<typeof ioredis>)
    await redis.connect()
    ends.push(() => redis.quit())
    const written = recentlyWritten({ redis })
    const user = crypto.randomUUID()
    expect(await written.has(user)).toBe(false)
    expect(await written.mark(user)).toBe(true)
    expect([await written.has(user), await written.has(crypto.randomUUID())]).toEqual([true, false])
    const left = await looks.pttl(`cqrs:written:${user}`)
    expect(left).toBeGreaterThan(0)
    expect(left).toBeLessThanOrEqual(3000)
    await looks.del(`cqrs:written:${user}`)
    expect(await written.has(user)).toBe(false)
  })
})
