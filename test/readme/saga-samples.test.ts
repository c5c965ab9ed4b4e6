/** Samples of the guides on sagas and projections: each is run here, as it stands. */
import type { PoolClient } from 'pg'
import { afterEach, expect, test } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { EventCollector, event, Reject, Router } from '../../src/index.ts'
import { Projector, projection, put } from '../../src/projection/index.ts'
import { SagaRunner, saga } from '../../src/saga/index.ts'
import { scriptedSource } from '../../src/testing/index.ts'
import { admin as redisAt, standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { OrderPlaced, onPostgres, play, playUntil } from './play.ts'

let calls: string[] = []
afterEach(() => {
  calls = []
})

const stock = {
  reserve: async (order: { id: string }) => calls.push(`reserve ${order.id}`),
  release: async () => void calls.push('release'),
}
const pay = {
  charge: async (total: number) => {
    calls.push(`charge ${total}`)
    return { receipt: 1 }
  },
  refund: async () => void calls.push('refund'),
  find: async () => undefined,
}

describeWith(['postgres'], 'samples of the guides on sagas', () => {
  test('sagas: one that is waited for, one that is started with a commit, and undone', () =>
    onPostgres(
      async ({ pool }) => {
        const write = (text: string) => async (_tx: PoolClient, id: string) => void calls.push(`${text} ${id}`)
        const finish = async (_tx: PoolClient, id: string, status: string) => void calls.push(`${id} ${status}`)
        const given = { pool, stock, pay, confirm: write('confirm'), reopen: write('reopen'), finish }
        const { runner, orders, results } = await play('sagas', 1, given)
        expect(results).toMatchObject({ charge: { receipt: 1 } })
        const undone = async () => (await orders.find({ aggregate: 'A-2' }))[0]?.status === 'compensated'
        await eventually('it is undone', undone).finally(() => runner.stop())
        expect(calls).toEqual([
          ...['reserve A-1', 'charge 30', 'confirm A-1', 'A-1 completed'],
          ...['reserve A-2', 'charge 5', 'confirm A-2', 'A-2 completed'],
          ...['reopen A-2', 'refund', 'release', 'A-2 compensated'],
        ])
      },
      { sagas: true },
    ))

  test('saga-requests: the order, its saga, the request and its events are one commit; a reply goes on', () =>
    onPostgres(
      async ({ pool, db }) => {
        await pool.query('CREATE TABLE orders (id text)')
        const broker = new InProcessBroker()
        const queue = broker.source('replies', { topics: ['shipped', 'delivered'] })
        const shipping = broker.source('shipping', { topics: ['ship.*'] })
        const Placed = event<{ id: string }>('order.placed')
        const ShipOrder = event<{ order: string }>('ship.order')
        const Shipped = event<{ parcel: string }>('shipped')
        const ParcelDelivered = event<{ order: string }>('delivered')
        const depot = new Router('depot').on(ShipOrder, ({ data }) => Shipped({ parcel: `of ${data.order}` }))
        const participant = depot.consume(shipping, { to: broker.publisher() })
        const given = {
          ...{ db, broker, queue, ShipOrder, Shipped, ParcelDelivered },
          ShipRefused: event<{ why: string }>('ship.refused'),
          CancelShipment: event<{ order: string }>('ship.cancel'),
          ShipmentCancelled: event<object>('ship.cancelled'),
          insertOrder: (tx: PoolClient, id: string) => tx.query('INSERT INTO orders VALUES ($1)', [id]),
        }
        const statuses = async () => (await pool.query('SELECT status FROM saga_executions')).rows
        const order = new EventCollector()
        order.record(Placed({ id: 'A-1' }))
        await playUntil('saga-requests', 1, given, async ({ place }) => {
          await place({ id: 'A-1', events: order })
          await eventually('its request is there', async () => (await participant.runOnce()).done === 1)
          await broker.publish([ParcelDelivered({ order: 'A-1' })])
          await eventually('it has ended', async () => (await statuses())[0]?.status === 'completed')
        })
        await participant.stop()
        const types = (await db.outbox.admin.list({})).map(({ type }) => type)
        expect(types.sort()).toEqual(['order.placed', 'ship.order'])
      },
      { sagas: true },
    ))

  test('saga-requests: a participant handles a request once, and an undo that comes first', () =>
    onPostgres(
      async ({ pool, db }) => {
        const book = async (_tx: PoolClient, { order }: { order: string }) => `${calls.push(`book ${order}`)}`
        const cancel = async (_tx: PoolClient, { order }: { order: string }) => void calls.push(`cancel ${order}`)
        const { shipping, ShipOrder, CancelShipment } = await play('saga-requests', 2, { pool, book, cancel })
        const of = (order: string, undo = false) => ({
          extensions: {
            ...{ sagatype: 'fulfilment', sagaid: order, sagastep: 'ship', sagakey: `${order}/ship` },
            ...(undo ? { sagaundo: `${order}/ship/1` } : {}),
          },
        })
        const source = scriptedSource([
          [ShipOrder({ order: 'A' }, of('A')), ShipOrder({ order: 'A' }, of('A'))],
          [CancelShipment({ order: 'A' }, of('A', true)), CancelShipment({ order: 'B' }, of('B', true))],
          [ShipOrder({ order: 'B' }, of('B'))],
        ])
        const consumer = shipping.consume(source, { concurrency: 1 })
        for (let left = 5; left > 0; ) left -= (await consumer.runOnce()).taken
        await consumer.stop()
        expect(calls).toEqual(['book A', 'cancel A'])
        expect((await db.outbox.admin.list()).map(({ type }) => type)).toContain('shipped')
      },
      { barrier: true },
    ))

  test('saga-operations: a person resolves what is held', () =>
    onPostgres(
      async ({ db }) => {
        const fulfilment = saga<{ id: string }>('fulfilment', { version: 1 })
          .step(
            'charge',
            () => {
              throw new Error('no answer')
            },
            { unknown: 'hold' },
          )
          .step('ship', async () => void calls.push('ship'))
        const runner = await new SagaRunner({ store: db, sagas: [fulfilment] }).start()
        const orders = runner.client(fulfilment)
        await orders.run({ id: 'A-1' }).catch(() => {})
        const { waiting } = await play('saga-operations', 1, { db, fulfilment })
        await orders.result(waiting?.id ?? (await orders.find({}))[0]!.id)
        await runner.stop()
        expect(calls).toEqual(['ship'])
      },
      { sagas: true },
    ))
})

test('sagas: given, when, then; and the crash matrix', async () => {
  /** A key that was released once is not reserved any more. */
  class Services {
    readonly #reserved = new Map<string, boolean>()
    reserve(key: string) {
      if (!this.#reserved.has(key)) this.#reserved.set(key, true)
    }
    release(key: string) {
      this.#reserved.set(key, false)
    }
    mustAddUp(status: string) {
      expect([...this.#reserved.values()].filter(Boolean)).toHaveLength(status === 'completed' ? 1 : 0)
    }
  }
  const define = (undo: (services: Services, key: string) => void) => (services: Services) =>
    saga<{ id: string; total: number }>('fulfilment', { version: 1 })
      .step('reserve', (c) => services.reserve(c.key), { undo: (c) => undo(services, c.key) })
      .step('charge', () => {})
  const right = define((services, key) => services.release(key))
  const given = { fulfilment: right(new Services()), Services }
  await play('sagas', 2, { ...given, define: right })
  await expect(play('sagas', 2, { ...given, define: define(() => {}) })).rejects.toThrow('length')
})

describeWith(['postgres'], 'samples of the guides on projections', () => {
  test('projections: what is parked is looked at, tried again, skipped; and a projection ends', () =>
    onPostgres(
      async ({ db, pool }) => {
        const orders = projection('orders', { version: 1, table: 'orders', key: 'id' }).on(OrderPlaced, ({ data }) => {
          if (data.total < 0) throw new Reject('a negative total')
          return put(data.orderId, { total: data.total })
        })
        await pool.query('CREATE TABLE orders (id text PRIMARY KEY, total int)')
        const totals = [...Array(16).fill(1), -1, -1, 1]
        const events = totals.map((total, at) => OrderPlaced({ orderId: `o${at}`, total }))
        await db.withTransaction((tx) => db.outbox.enqueue(tx, events))
        const projector = new Projector({ store: db, log: db.log!, projections: [orders] })
        await eventually('two are parked', async () => {
          await projector.runOnce()
          return (await db.projections!.parked({}, {})).length === 2
        })
        await projector.stop()
        await play('projections', 2, { db, orders })
        const history = await db.projections!.audits(orders)
        expect(history.map(({ action }) => action).sort()).toEqual(['retire', 'retry', 'skip'])
      },
      { outbox: { log: true }, projections: true },
    ))
})

describeWith(['redis'], 'the sample on who has just written', () => {
  test('read-your-writes: from the main store, for a moment', async () => {
    const redis = redisAt(await standalone())
    const given = { redis, buyerId: 'ann', mainStore: async () => ['main'], fromView: async () => ['view'] }
    const { rows, written } = await play('read-your-writes', 1, given)
    expect(rows).toEqual(['main'])
    expect(await written.has('bob')).toBe(false)
  })
})
