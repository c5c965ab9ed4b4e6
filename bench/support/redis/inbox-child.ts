/** Our consumer with inbox and unit of work, in a process of its own; the handler does nothing. */
import { Redis } from 'ioredis'
import * as client from 'prom-client'
import { Router, transactional } from 'waybill'
import { recordMetrics } from 'waybill/observability'
import { redis } from 'waybill/redis'
import { redisStreams } from 'waybill/redis-streams'
import { serveRounds } from '../brokers/rounds.ts'
import { OrderPlaced, placed } from '../pg-events.ts'

const { url, concurrency } = JSON.parse(process.argv[2]!) as { url: string; concurrency: number }
const BATCH = 1000

recordMetrics({ client: client as never })
await serveRounds({}, async ({ events }, watch) => {
  const connection = new Redis(url)
  const db = redis({ client: connection, tag: 'bench' })
  const streams = redisStreams({ client: connection })
  const stream = db.key('orders')
  const publisher = streams.publisher({ stream })
  for (let from = 0; from < events; from += BATCH) {
    const batch = Array.from({ length: Math.min(BATCH, events - from) }, (_, i) => placed(from + i))
    await publisher.publish(batch as never, new AbortController().signal)
  }
  const router = new Router('bench').use(transactional(db)).on(OrderPlaced, () => watch.done(1))
  const source = streams.source({ stream, group: 'bench', batch: Math.min(concurrency, 500) })
  const consumer = router.consume(source, { concurrency, take: concurrency, buffer: { count: 2 * concurrency } })
  await consumer.start()
  await watch.all
  await consumer.stop()
  const [pending] = (await connection.xpending(stream, 'bench')) as [number]
  if (pending !== 0) throw new Error(`${pending} were not acknowledged`)
  await publisher.close!()
  await streams.close()
  await db.stop()
  connection.disconnect()
})
