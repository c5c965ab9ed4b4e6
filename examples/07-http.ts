// Webhooks: an order service sends signed CloudEvents to billing, over a real socket. No server of others is needed.
//
//   npm run build && npx tsx examples/07-http.ts
//
// Stores are in memory here; with `postgres({ pool })` in their place nothing else changes.

import { randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { event, Reject, Relay, Router, transactional } from 'waybill'
import { httpReceiver, httpSender, nodeListener } from 'waybill/http'
import { memory } from 'waybill/memory'

const OrderPlaced = event<{ orderId: string; total: number }>('order.placed')

// Both sides know it, and nobody else.
const secrets = `whsec_${randomBytes(32).toString('base64')}`

// ── billing: a receiver is a source like any other; it answers when the handler's transaction has committed ──
const billing = memory()
const hooks = httpReceiver({ secrets })
const router = new Router('billing').use(transactional(billing)).on(OrderPlaced, ({ data }) => {
  if (data.total < 0) throw new Reject('a negative total')
  console.log(`billing  ${data.orderId}: invoice over ${data.total}`)
})
const consumer = await router.consume(hooks).start()
const server = createServer(nodeListener(hooks))
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hooks`

// ── the shop: requests go to public addresses only, unless they are allowed by name ──
try {
  httpSender({ url, secrets })
} catch (error) {
  console.log(`shop     ${(error as Error).message}`)
}
const shop = memory()
const partner = httpSender({ url, secrets, allow: ['127.0.0.1'] })
const relay = new Relay({ from: shop.outbox, to: partner })
const placed = OrderPlaced({ orderId: 'A-1', total: 30 })
await shop.withTransaction((tx) => shop.outbox.enqueue(tx, [placed, OrderPlaced({ orderId: 'B-2', total: -1 })]))
console.log('relay   ', await relay.runOnce())

// What was refused is kept, until a person decides.
const [dead] = await shop.outbox.admin.list({ states: ['dead'] })
console.log(`dead     ${dead!.type}: ${dead!.lastError}`)

// The same event once more: it is answered, and its handler not called.
const again = await partner.publish([(await shop.outbox.admin.show(placed.id))!.message], AbortSignal.timeout(5000))
console.log(`again    ${again[0]!.kind}`)

// Whoever does not know the secret is not heard.
const forged = await fetch(url, { method: 'POST', body: '{}', headers: { 'webhook-id': '1', 'ce-id': '1' } })
console.log(`forged   ${forged.status} ${(await forged.text()).trim()}`)

await relay.stop()
await hooks.stop()
await consumer.stop()
await partner.close()
await new Promise((resolve) => {
  server.close(resolve)
  server.closeAllConnections()
})
