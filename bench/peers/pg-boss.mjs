/** pg-boss tuned for throughput: batches of 1000, fetched again at once while they come full, by two workers. */
import { PgBoss } from 'pg-boss'
import { drain } from '../support/pg-drain.ts'

const { url, events, cold, mode } = JSON.parse(process.argv[2])
const boss = new PgBoss({ connectionString: url, max: 10, supervise: false, schedule: false })
boss.on('error', (error) => console.error(error))

if (mode === 'seed') await seed()
else {
  await drain({ events, cold }, async (tell) => {
    await boss.start()
    const options = {
      batchSize: 1000,
      localConcurrency: 2,
      pollingIntervalSeconds: 0.5,
      burstWhenBatchFull: true,
    }
    await boss.work('relay', options, async (jobs) => tell(jobs.length))
    return () => boss.stop({ graceful: true, timeout: 10_000 })
  })
}

async function seed() {
  const { keyOf, order } = await import('../support/pg-events.ts')
  await boss.start()
  await boss.createQueue('relay')
  for (let from = 0; from < events; from += 1000) {
    const jobs = Array.from({ length: Math.min(1000, events - from) }, (_, i) => {
      return { data: { key: keyOf(from + i), data: order(from + i) } }
    })
    await boss.insert('relay', jobs)
  }
  await boss.stop({ graceful: true, timeout: 5000 })
}
