/**
 * BullMQ with one worker, at the best of several concurrencies, and jobs removed when they are complete.
 */
import { Queue, Worker } from 'bullmq'
import { Redis } from 'ioredis'
import { serveRounds } from '../support/brokers/rounds.ts'
import { keyOf, order } from '../support/pg-events.ts'

const { url, concurrency } = JSON.parse(process.argv[2])
const connection = () => new Redis(url, { maxRetriesPerRequest: null })

await serveRounds({}, async ({ name, events }, watch) => {
  const [adding, working] = [connection(), connection()]
  const queue = new Queue(name, { connection: adding })
  for (let from = 0; from < events; from += 1000) {
    const jobs = Array.from({ length: Math.min(1000, events - from) }, (_, i) => {
      return { name: 'order.placed', data: { key: keyOf(from + i), data: order(from + i) } }
    })
    await queue.addBulk(jobs)
  }
  const options = { connection: working, concurrency, removeOnComplete: { count: 0 } }
  const worker = new Worker(name, async () => watch.done(1), options)
  await watch.all
  await worker.close()
  const left = await queue.getJobCountByTypes('wait', 'active', 'failed')
  if (left !== 0) throw new Error(`${left} jobs were left`)
  await queue.close()
  adding.disconnect()
  working.disconnect()
})
