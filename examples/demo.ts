// npm run demo                     round after round, until Ctrl-C
// npm run demo -- --once           one round; exits with 1 if anything was lost, doubled or out of order
//                 --orders 50      how many a round
//                 --lose 3         billing drops some and says that it has them: see that it would be noticed
//                 --without-inbox  billing handles every delivery: see what the inbox is for
//
// Two services, each with a PostgreSQL of its own inside its process (PGlite, a folder each; nothing to install):
//
//   shop: order + outbox ─▶ relay ══ HTTP ══▶ billing: inbox + invoice
//
// Every 9th order is rolled back. The shop's process is killed (SIGKILL) while events are on their way, and started
// again on the same folder. Later billing stops answering, and then is away for a while. In the end the tables are
// compared: every order has its event and exactly one invoice, and nothing else has.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { Child } from './demo/child.ts'
import { emptyDatabase } from './support/database.ts'
import { banner, note, progress, summary } from './support/screen.ts'

const { once, orders, lose, withoutInbox } = options()
const AWAY = 1200
const PATIENCE = 60_000

interface BillingCounts {
  invoices: number
  duplicates: number
  unanswered: number
}

interface ShopBooks {
  orders: number[]
  events: { order: number; state: string }[]
}

interface BillingBooks {
  invoices: { order_id: number; customer: string }[]
  delivered: number
}

let interrupted = false
process.on('SIGINT', () => {
  if (interrupted) process.exit(130)
  interrupted = true
  note('this round is played to its end; Ctrl-C again ends at once')
})

const began = performance.now()
const folder = mkdtempSync(join(tmpdir(), 'waybill-demo-'))
process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
const services: Child[] = []
let expected = orders
try {
  process.exitCode = await play()
} finally {
  await Promise.all(services.map((service) => service.kill()))
}

async function play(): Promise<number> {
  banner(`${orders} orders${once ? '' : ' a round, until Ctrl-C'}; making two databases …`)
  for (const name of ['shop', 'billing']) await emptyDatabase(join(folder, name))
  const billing = start('billing', [join(folder, 'billing'), String(lose), withoutInbox ? 'inbox' : ''])
  let shop = startShop()
  const url = await billing.ask<string>('url')
  await shop.ask('start', url)
  note(`both services are up after ${seconds()} s`)

  const watching = setInterval(() => void look(shop, billing).catch(() => {}), 100)
  const totals = { kills: 0, outages: 0 }
  for (let round = 0; ; round++) {
    const part = (share: number) => Math.round((round + share) * orders)
    expected = (part(1) * 8) / 9 // one of nine is rolled back
    await shop.ask('takeOrders', part(0.3))

    await billing.ask('behave', 'mute')
    shop.ask('takeOrders', part(0.6)).catch(() => {}) // it is killed meanwhile
    shop = await killShop(shop, billing, url)
    totals.kills++
    await shop.ask('takeOrders', part(0.6))

    await billing.ask('behave', 'mute')
    const taking = shop.ask('takeOrders', part(1))
    await outage(billing)
    totals.outages++
    await taking

    await waitFor(async () => (await shop.ask<number>('pending')) === 0)
    const verdict = await compare(shop, billing, totals)
    if (once || interrupted || verdict !== 0) {
      clearInterval(watching)
      await Promise.all([shop.stop(), billing.stop()])
      return verdict
    }
  }
}

async function look(shop: Child, billing: Child): Promise<void> {
  const { orders: placed } = await shop.ask<{ orders: number }>('counts')
  const { invoices, duplicates } = await billing.ask<BillingCounts>('counts')
  progress({ orders: placed, invoices, duplicates }, expected)
}

function startShop(): Child {
  return start('shop', [join(folder, 'shop')], ({ paused, resumedAfter }) => {
    if (paused) note('the relay pauses: billing is away; no event is charged an attempt for it')
    if (resumedAfter) note(`the relay goes on by itself after ${((resumedAfter as number) / 1000).toFixed(1)} s`)
  })
}

/** The worst moment: billing has handled events, the shop has not heard of it. */
async function killShop(shop: Child, billing: Child, url: string): Promise<Child> {
  await unanswered(billing)
  await shop.kill()
  note('SIGKILL: the shop and its relay are gone, with events on their way that nobody has confirmed')
  await billing.ask('behave', 'up')
  const again = startShop()
  await again.ask('start', url)
  const { orders } = await again.ask<{ orders: number }>('counts')
  note(`the shop is back on the same folder, with its ${orders} orders and what was in its outbox`)
  return again
}

async function outage(billing: Child): Promise<void> {
  await unanswered(billing)
  await billing.ask('behave', 'down')
  note('billing has handled events, and breaks off before it says so')
  await pause(AWAY)
  await billing.ask('behave', 'up')
}

/** Until billing has handled something and kept silent about it. */
function unanswered(billing: Child): Promise<void> {
  return waitFor(async () => (await billing.ask<BillingCounts>('counts')).unanswered > 0)
}

/** What the tables say, counted here. */
async function compare(shop: Child, billing: Child, totals: { kills: number; outages: number }): Promise<number> {
  const { orders: placed, events } = await shop.ask<ShopBooks>('books')
  const { invoices, delivered } = await billing.ask<BillingBooks>('books')
  const invoiced = new Set(invoices.map((invoice) => invoice.order_id))
  const known = new Set(placed)
  const lost = placed.filter((id) => !invoiced.has(id))
  const books = {
    orders: placed.length,
    events: events.filter(({ state }) => state === 'published').length,
    delivered,
    duplicates: delivered - invoiced.size,
    invoices: invoices.length,
    ...totals,
    lost: lost.length,
    doubled: invoices.length - invoiced.size,
    invented: [...invoiced].filter((id) => !known.has(id)).length,
    disordered: disordered(invoices),
  }
  const equal = books.orders === books.events && books.orders === books.invoices
  const wrong = books.lost + books.doubled + books.invented + books.disordered
  summary(books, equal && wrong === 0, seconds())
  return equal && wrong === 0 ? 0 : 1
}

/** Invoices of a customer that came before an earlier order's. A second one of the same order is counted elsewhere. */
function disordered(invoices: BillingBooks['invoices']): number {
  const last = new Map<string, number>()
  const seen = new Set<number>()
  let count = 0
  for (const { order_id, customer } of invoices) {
    if (seen.has(order_id)) continue
    seen.add(order_id)
    if (order_id < (last.get(customer) ?? 0)) count++
    last.set(customer, order_id)
  }
  return count
}

function start(name: 'shop' | 'billing', args: string[], onTold?: (told: Record<string, unknown>) => void): Child {
  const service = new Child(new URL(`./demo/${name}.ts`, import.meta.url), args, onTold)
  services.push(service)
  return service
}

async function waitFor(condition: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + PATIENCE
  while (performance.now() < deadline) {
    if (await condition()) return
    await pause(20)
  }
}

function seconds(): string {
  return ((performance.now() - began) / 1000).toFixed(1)
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

function options(): { once: boolean; orders: number; lose: number; withoutInbox: boolean } {
  try {
    const { values } = parseArgs({
      options: {
        once: { type: 'boolean', default: false },
        orders: { type: 'string', default: '200' },
        lose: { type: 'string', default: '0' },
        'without-inbox': { type: 'boolean', default: false },
      },
    })
    const numbers = { orders: whole('orders', values.orders, 20), lose: whole('lose', values.lose, 0) }
    return { once: values.once, withoutInbox: values['without-inbox'], ...numbers }
  } catch (error) {
    const usage = 'usage: npm run demo [-- --once] [--orders 200] [--lose 0] [--without-inbox]'
    console.error(`${(error as Error).message}\n\n${usage}`)
    process.exit(2)
  }
}

function whole(name: string, text: string, least: number): number {
  const value = Number(text)
  if (text !== '' && Number.isSafeInteger(value) && value >= least) return value
  throw new Error(`--${name} takes a whole number of at least ${least}, not ${JSON.stringify(text)}`)
}
