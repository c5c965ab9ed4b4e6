// One process of the service: `main.ts api`, `orders`, `inventory` or `billing`; or `main.ts migrate`, once per deploy.
// Start as many of each as you like: relays, sagas and the view have one owner at a time, consumers share their queue.

import amqplib from 'amqplib'
import { Cleaner, type EventKey, Relay, type Router, run, Supervisor, shutdownSignal } from 'waybill'
import { rabbitmq } from 'waybill/rabbitmq'
import { route } from './api.ts'
import { billing, requests as billingRequests } from './billing.ts'
import { migrate, pools, stores } from './db.ts'
import { BuyerNameChanged, OrderCreated } from './events.ts'
import { inventory, requests as inventoryRequests } from './inventory.ts'
import { answers, LEASE, replies, runner } from './saga.ts'
import { observe, serve } from './telemetry.ts'
import { projector } from './view.ts'

const exchange = process.env['EXCHANGE'] ?? 'shop'
const broker = rabbitmq({
  client: amqplib,
  url: process.env['RABBITMQ_URL'] ?? 'amqp://localhost',
  exchange,
  declare: true,
  // Of these only the view takes notice, and it reads the log. Whatever else finds no queue is waiting for a deploy.
  unroutable: ({ type }) => (type === OrderCreated.type || type === BuyerNameChanged.type ? 'ok' : 'down'),
})

/** A queue that hears of these messages, and the router that handles them. */
function consume(router: Pick<Router, 'name' | 'consume'>, events: readonly EventKey[]) {
  const topics = events.map(({ type }) => type)
  return router.consume(broker.source({ queue: `${exchange}.${router.name}`, topics }))
}

function relay({ outbox }: (typeof stores)[keyof typeof stores]) {
  return new Relay({ from: outbox, to: broker, lease: LEASE })
}

const ROLES = {
  api: () => [],
  orders: ({ outbox, inbox, sagas } = stores.orders) => [
    relay(stores.orders),
    runner(),
    consume(replies, answers),
    projector(),
    new Cleaner({ of: [outbox.admin, inbox, sagas] }),
  ],
  inventory: ({ outbox, inbox, barriers } = stores.inventory) => [
    consume(inventory, inventoryRequests),
    relay(stores.inventory),
    new Cleaner({ of: [outbox.admin, inbox, barriers] }),
  ],
  billing: ({ outbox, inbox, barriers } = stores.billing) => [
    consume(billing, billingRequests),
    relay(stores.billing),
    new Cleaner({ of: [outbox.admin, inbox, barriers] }),
  ],
}

async function main(role: keyof typeof ROLES): Promise<void> {
  const signal = shutdownSignal() // first of all: a process may be told to end while it starts
  const log = observe(role)
  // A worker that ends with an error is started again; what is only away is waited for. `status()` tells.
  const app = new Supervisor({ name: role })
  for (const worker of ROLES[role]()) await app.add(worker)
  await app.add(broker)
  const pool = pools[role === 'api' ? 'orders' : role]
  await app.add({ name: 'pool', phase: 'stores', stop: () => pool.end() })
  const routes = role === 'api' ? { routes: route } : {}
  await app.add(await serve({ port: Number(process.env['PORT'] ?? 8080), log, status: () => app.status(), ...routes }))
  // Until SIGTERM. Then, in this order: requests, consumers, relays, the broker, the pool.
  await run([app], { signal })
}

const role = process.argv[2] ?? ''
if (role === 'migrate') await migrate()
else if (role in ROLES) await main(role as keyof typeof ROLES)
else throw new Error(`main.ts ${Object.keys(ROLES).join(' | ')} | migrate, not ${JSON.stringify(role)}`)
