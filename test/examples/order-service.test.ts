import { beforeAll, expect, test } from 'vitest'
import { build } from '../readme/support.ts'
import { describeWith } from '../support/services.ts'
import { atRest, audit, rows } from './order-service/books.ts'
import { Buyers } from './order-service/buyers.ts'
import { type Line, ROLES, Shop } from './order-service/shop.ts'

beforeAll(build, 170_000)

const UUID = '[0-9a-f-]{36}'

describeWith(['postgres', 'rabbitmq'], 'examples/order-service', () => {
  test('a process is killed, and orders, view, invoices and stock add up', { timeout: 120_000 }, async () => {
    const shop = await Shop.open({ LOG_LEVEL: 'debug', LEASE: '2s' })
    try {
      const buyers = new Buyers(shop)
      await buyers.comeIn()
      const placing = Promise.all(Array.from({ length: 12 }, () => buyers.order()))
      await shop.kill('orders')
      await placing
      await atRest(shop)
      await changesItsMind(shop, buyers)
      await atRest(shop)
      expect(await audit(shop, buyers.placed)).toEqual({})

      // Both releases have written; each line of the view was made from what both say.
      const versions = `SELECT DISTINCT event_version FROM orders.outbox WHERE event_type = 'order.status_changed' ORDER BY 1`
      expect(await rows(shop.pool, versions)).toEqual([{ event_version: 1 }, { event_version: 2 }])
      await readsItsOwnWrites(shop, buyers)
      await isSeen(shop)
      const before = shop.lines.length
      expect(await shop.stop()).toBe(0)
      stopsInOrder(shop.lines.slice(before))
      expect(shop.other).toEqual([])
    } finally {
      await shop.close()
    }
  })
})

/** A buyer cancels an order that has its stock and its invoice, and whose line in the list has the old name. */
async function changesItsMind(shop: Shop, buyers: Buyers): Promise<void> {
  const confirmed = `SELECT id, buyer_id FROM orders.orders WHERE status = 'confirmed' ORDER BY created_at LIMIT 1`
  const [order] = await rows(shop.pool, confirmed)
  await buyers.cancel(String(order!['id']))
  await buyers.rename(String(order!['buyer_id']))
}

async function readsItsOwnWrites(shop: Shop, buyers: Buyers): Promise<void> {
  const id = crypto.randomUUID()
  const placed = await buyers.ask('PUT', `/orders/${id}`, { buyerId: 'ann', sku: 'tea', quantity: 1 })
  const cookie = placed.headers.get('set-cookie')!
  const list = async (query: string) => {
    const response = await fetch(`${shop.url('api')}/buyers/ann/orders?${query}`, { headers: { cookie } })
    return { status: response.status, ...((await response.json()) as { orders: { order_id: string }[]; next: string }) }
  }
  const first = await list('size=1')
  expect(first).toMatchObject({ status: 200, view: 'reached', orders: [{ order_id: id }], next: expect.any(String) })
  const second = await list(`size=1&cursor=${first.next}`)
  expect(second).toMatchObject({ status: 200, orders: [{ order_id: expect.stringMatching(UUID) }] })
  expect(second.orders[0]!.order_id).not.toBe(id)
  expect(await list(`cursor=${first.next.replace(/^./, 'x')}`)).toMatchObject({ status: 422 })
}

/** In each process consumers first, then relays: what a handler has written last goes out too. */
function stopsInOrder(lines: readonly Line[]): void {
  const consumers = { orders: 'saga-replies', inventory: 'inventory', billing: 'billing' }
  for (const [role, consumer] of Object.entries(consumers)) {
    const stopped = lines.flatMap(({ name, msg, worker }) =>
      name === role && msg === 'waybill:worker.stopped' ? [worker] : [],
    )
    const order = [consumer, 'relay outbox', 'run'].map((worker) => stopped.indexOf(worker))
    expect(order, stopped.join(', ')).toEqual([...order].sort((a, b) => a - b))
    expect(order, stopped.join(', ')).not.toContain(-1)
  }
}

/** One trace from the request to the other services and back; metrics and status in every process. */
async function isSeen(shop: Shop): Promise<void> {
  const spans = shop.lines.filter(({ msg }) => msg.startsWith('span '))
  const requests = spans.filter(({ msg }) => msg === 'span putOrder').map(({ traceId }) => traceId)
  const traces = requests.map((request) =>
    spans.filter(({ traceId }) => traceId === request).map(({ name, msg }) => `${name}: ${msg.slice(5)}`),
  )
  const parts = ['inventory: process stock.reserve', 'billing: process invoice.issue', 'orders: process invoice.issued']
  const whole = traces.filter((trace) => parts.every((part) => trace.includes(part)))
  expect(whole.length, JSON.stringify(traces)).toBeGreaterThan(0)
  for (const role of ROLES) {
    expect(await (await fetch(`${shop.url(role)}/status`)).json()).toMatchObject({ name: role, state: 'running' })
  }
  const metrics = await (await fetch(`${shop.url('orders')}/metrics`)).text()
  expect(metrics).toMatch(/^waybill_saga_ended_total\{type="fulfilment",status="completed"\} \d+/m)
  expect(metrics).toMatch(/^outbox_dispatch_total\{.*result="success".*\} \d+/m)
}
