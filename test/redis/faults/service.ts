import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { encodeData, event, type RawMessage, systemClock } from '../../../src/core/index.ts'
import { Relay } from '../../../src/outbox/index.ts'
import { redis } from '../../../src/redis/index.ts'
import { Router } from '../../../src/router/index.ts'
import { transactional } from '../../../src/store/index.ts'
import { crashingPublisher, crashPoint } from '../../../src/testing/index.ts'
import { ioredis } from '../clients.ts'
import { crashing } from './points.ts'

export interface ServiceSettings {
  tag: string
  lease?: number
  /** How long an entry must lie before another takes it. */
  idle?: number
  /** How long the handler takes. */
  takes?: number
  /** It fails so many times first. */
  fails?: number
  /** How many milliseconds of silence make a command fail. */
  timeout?: number
  concurrency?: number
  onHandle?: (id: string) => void
}

export const Placed = event<{ n: number }>('order.placed')
export const Invoiced = event<{ n: number }>('invoice.sent')

export function order(n: number): RawMessage {
  return encodeData(Placed({ n }, { id: `o${n}`, source: '/shop' }))
}

/**
 * A service on Redis alone: consumes `{tag}:orders`, adds each order to `{tag}:total`, counts it in the hash
 * `{tag}:times`, and forwards what its handler returned to `{tag}:invoices`.
 */
export function serviceOn(url: string, settings: ServiceSettings) {
  const { tag, lease = 1000, idle = 800, takes = 0, fails = 0, timeout = 5000, concurrency = 20, onHandle } = settings
  const db = redis({ client: crashing(ioredis(url)), tag, timeout, inbox: { lease } })
  const streams = redisStreams({ client: crashing(ioredis(url)), timeout })
  const outgoing = redisStreams({ client: crashing(ioredis(url), 'forwarder: '), timeout })
  const reclaim = { every: Math.min(200, idle / 2), idle }
  let failures = 0
  const router = new Router('billing').use(transactional(db)).on(Placed, async ({ data, id }, { tx }) => {
    crashPoint('handler begins')
    onHandle?.(id)
    tx.incrby(db.key('total'), data.n)
    tx.hincrby(db.key('times'), id, 1)
    crashPoint('handler has queued')
    if (takes > 0) await systemClock.sleep(takes)
    if (failures++ < fails) throw new Error('not yet')
    return Invoiced({ n: data.n }, { id: `i-${id}` })
  })
  const backoffs = { retry: { backoff: { min: 50, max: 200 } }, outage: { min: 50, max: 200 } }
  const consumer = router.consume(
    streams.source({ stream: db.key('orders'), group: 'billing', block: 50, batch: 100, reclaim }),
    { concurrency, ...backoffs, poll: 50, maxPoll: 100 },
  )
  const invoices = streams.publisher({ stream: db.key('invoices') })
  const forwarder = new Relay({
    from: outgoing.source({ ...db.outbox.forwarding, block: 50, reclaim }),
    to: crashingPublisher(invoices, 'forwarder'),
    ...backoffs,
    poll: 50,
    maxPoll: 100,
  })
  return {
    db,
    async start() {
      await consumer.start()
      await forwarder.start()
    },
    async stop() {
      await consumer.stop()
      await forwarder.stop()
      await Promise.all([invoices.close!(), streams.close(), outgoing.close(), db.stop()])
    },
  }
}
