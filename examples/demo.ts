// npm run demo                 until Ctrl-C
// npm run demo -- --once       one round; exits with 1 if anything was lost
//                 --orders 50  how many a round
//                 --lose 3     drops some on purpose, to see that it would be noticed
//
// Orders travel from a shop to a mail room while things go wrong: a handler fails now and then, some orders can never
// be handled, and the broker breaks down in the middle, after it took a batch and before it said so. In the end every
// order has exactly one invoice, or is put aside with a reason.
//
//   shop ─▶ outbox ─▶ relay ═▶ broker ═▶ billing ═▶ broker ═▶ mail room
//
// Everything here is in one process and in memory.

import { parseArgs } from 'node:util'
import {
  Engine,
  event,
  Message,
  OK,
  type Publisher,
  Reject,
  Router,
  run,
  shutdownSignal,
  telemetry,
  Unavailable,
} from 'waybill'
import { InProcessBroker } from 'waybill/in-process'
import { z } from 'zod'
import { banner, note, progress, summary } from './support/screen.ts'

const { once, orders, lose } = options()
const OUTAGE = 1200
const PATIENCE = 30_000

const OrderPlaced = event('order.placed', z.object({ orderId: z.string(), total: z.number() }))
const InvoiceSent = event('invoice.sent', z.object({ orderId: z.string(), amount: z.number() }))

// Our own books, kept apart from what the package says about itself.
const sent = new Set<string>()
const charged = new Set<string>()
const mailed = new Set<string>()
const totals = { sent: 0, handled: 0, retried: 0, dead: 0, duplicates: 0, outages: 0, lost: 0 }

// ── the broker, and how it breaks down ──
const broker = new InProcessBroker({ name: 'broker' })
let state: 'up' | 'breaking' | 'away' = 'up'
const connection: Publisher = {
  name: 'broker',
  features: broker.features,
  async publish(messages) {
    if (state === 'away') throw new Unavailable('the broker does not answer')
    const outcomes = await broker.publish(messages.filter(notDropped))
    if (state === 'up') return dropped.size === 0 ? outcomes : messages.map(() => OK)
    // The worst moment: it has the messages, and nobody knows.
    state = 'away'
    throw new Unavailable('the connection broke before the broker confirmed')
  },
}

const dropped = new Set<string>()
function notDropped({ id, type }: Message): boolean {
  if (type === OrderPlaced.type && dropped.size < lose) dropped.add(id)
  return !dropped.has(id)
}

// ── the shop writes to its outbox; the relay forwards what it finds there, undecoded ──
const outbox = new InProcessBroker({ name: 'outbox' })
const relay = new Engine('relay').output('broker', connection)
await relay.input('outbox', outbox.source('relay'), {
  passThrough: true,
  concurrency: 25,
  retry: { breaker: { min: '100ms', max: '400ms' } },
})

// ── billing: fails now and then, and is called again ──
const billing = new Router('billing').on(OrderPlaced, async ({ id, data }, { attempt }) => {
  if (data.total < 0) throw new Reject('an order needs a total above zero')
  if (Number(data.orderId) % 7 === 0 && attempt === 1) throw new Error('the card reader is busy')
  if (charged.has(id)) totals.duplicates++
  charged.add(id)
  // The same order always makes the same invoice, so whoever gets it twice can tell.
  return InvoiceSent({ orderId: data.orderId, amount: data.total }, { id: `invoice of ${id}`, subject: id })
})
const retries = { backoff: { min: '100ms', max: '1s' }, breaker: { min: '100ms', max: '400ms' } } as const

// ── the mail room: each invoice once ──
const mail = new Router('mail').on(InvoiceSent, ({ subject }) => {
  if (mailed.has(subject!)) totals.duplicates++
  mailed.add(subject!)
})

const workers = [
  relay,
  billing.consume(broker.source('billing', { topics: ['order.*'] }), { to: connection, retry: retries }),
  mail.consume(broker.source('mail', { topics: ['invoice.*'] })),
]

telemetry['message.handled'].subscribe(({ result }) => {
  if (result === 'retry') totals.retried++
})
telemetry['flow.paused'].subscribe(({ flow, failures }) => {
  if (failures === 1) note(`${flow} pauses: the broker is away; nobody is charged for it`)
})
telemetry['flow.resumed'].subscribe(({ flow, pausedFor }) => {
  note(`${flow} goes on by itself after ${(pausedFor / 1000).toFixed(1)} s`)
})

// ── the run ──
const interrupted = shutdownSignal()
const stop = new AbortController()
const running = run(workers, { signal: stop.signal })
const began = performance.now()

banner(`${orders} orders${once ? '' : ' a round, until Ctrl-C'}; every 7th fails at first, some are poison, one outage`)
for (let round = 1; !interrupted.aborted; round++) {
  await play(round)
  if (once || totals.lost > 0) break
}
stop.abort()
await running
summary(totals, (performance.now() - began) / 1000)
process.exitCode = totals.lost > 0 ? 1 : 0

/** One round: orders go out, the broker breaks down in the middle, and in the end the books are compared. */
async function play(round: number): Promise<void> {
  for (let n = 1; n <= orders && !interrupted.aborted; n++) {
    if (n === Math.ceil(orders / 2)) breakDown()
    const order = orderOf(`${round}-${n}`, n)
    await outbox.publish([order])
    sent.add(order.id)
    if (n % 10 === 0) await pause(20)
    show()
  }
  const deadline = performance.now() + PATIENCE
  while (moving() && performance.now() < deadline) {
    await pause(20)
    show()
  }
  const lost = open()
  for (const id of lost.slice(0, 5)) note(`order ${id} is lost`)
  totals.sent += sent.size
  totals.handled += mailed.size
  totals.dead += broker.dead('billing').length
  totals.lost += lost.length
  broker.discard('billing', () => true)
  for (const book of [sent, charged, mailed]) book.clear()
}

/** Whether anything is still on its way. */
function moving(): boolean {
  const stats = [outbox.stats('relay'), broker.stats('billing'), broker.stats('mail')]
  return stats.some(({ ready, inHand, retrying }) => ready + inHand + retrying > 0)
}

/** Orders that have no invoice and are not put aside either. */
function open(): string[] {
  const dead = new Set(broker.dead('billing').map(({ message }) => message.id))
  return [...sent].filter((id) => !mailed.has(id) && !dead.has(id))
}

function orderOf(id: string, n: number): Message {
  // Poison: one that is no JSON at all, and one that its handler refuses.
  if (n % 200 === 50) return new Message({ id, source: '/shop', type: OrderPlaced.type }, '{"orderId":', 'raw')
  return OrderPlaced({ orderId: String(n), total: n % 200 === 150 ? -1 : n }, { id })
}

function breakDown(): void {
  totals.outages++
  state = 'breaking'
  setTimeout(() => {
    state = 'up'
  }, OUTAGE)
}

function show(): void {
  const dead = broker.dead('billing').length
  progress({ sent: sent.size, handled: mailed.size, retried: totals.retried, dead }, orders)
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

function options(): { once: boolean; orders: number; lose: number } {
  try {
    const { values } = parseArgs({
      options: {
        once: { type: 'boolean', default: false },
        orders: { type: 'string', default: '1000' },
        lose: { type: 'string', default: '0' },
      },
    })
    return { once: values.once, orders: whole('orders', values.orders, 1), lose: whole('lose', values.lose, 0) }
  } catch (error) {
    console.error(`${(error as Error).message}\n\nusage: npm run demo [-- --once] [--orders 1000] [--lose 0]`)
    process.exit(2)
  }
}

function whole(name: string, text: string, least: number): number {
  const value = Number(text)
  if (text !== '' && Number.isSafeInteger(value) && value >= least) return value
  throw new Error(`--${name} takes a whole number of at least ${least}, not ${JSON.stringify(text)}`)
}
