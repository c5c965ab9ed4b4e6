/** Millions of messages through a slow sink: how much memory that takes. Plain JavaScript, see child.ts. */
import { setImmediate } from 'node:timers/promises'
import { event, Message, Router } from 'waybill'
import { sink } from 'waybill/pipes'

const total = Number(process.argv[2] ?? 5_000_000)
const Placed = event('order.placed')
const Sent = event('invoice.sent')

let given = 0
let settled = 0
let sent = 0
let most = 0
let finish = () => {}
const finished = new Promise((resolve) => {
  finish = resolve
})

const source = {
  name: 'orders',
  features: { redelivers: true },
  async open() {
    return {
      lost: new AbortController().signal,
      async take({ count }) {
        const batch = []
        for (; batch.length < count && given < total; given++) {
          const extensions = { partitionkey: `customer-${given % 5000}` }
          const attributes = { id: `m${given}`, source: '/orders', type: 'order.placed', extensions }
          const message = new Message(attributes, `{"order":"o-${given}","total":${given % 1000}}`)
          batch.push({ message, key: message.key, attempts: 0, size: 300 })
        }
        return batch
      },
      async settle(batch) {
        settled += batch.length
        if (settled === total) finish()
        return 0
      },
      async close() {},
    }
  },
}

// Slow: every batch waits for a turn of the event loop, so the source is always ahead of it.
const slow = sink(async (messages) => {
  sent += messages.length
  await setImmediate()
})

const router = new Router('memory')
router.on(Placed, ({ data }) => Sent({ order: data.order }))
const consumer = router.consume(source, { to: slow, concurrency: 200, buffer: { count: 1000 }, take: 500 })

const look = () => {
  most = Math.max(most, process.memoryUsage.rss())
}
const watching = setInterval(look, 20)
const began = performance.now()
await consumer.start()
// What is taken by then is the programme itself, compiled and warm; from here on it must not grow.
const until = async (count) => {
  while (settled < count) await setImmediate()
  look()
  return process.memoryUsage.rss()
}
const early = await until(total / 10)
await finished
clearInterval(watching)
look()
const seconds = (performance.now() - began) / 1000
await consumer.stop()
const mb = (bytes) => bytes / 2 ** 20
console.log(JSON.stringify({ total, sent, seconds, earlyMb: mb(early), mostMb: mb(most) }))
