/**
 * graphile-worker at its best documented settings (https://worker.graphile.org/docs/performance): jobs fetched into a
 * local queue of 500 and completed in batches.
 */
import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'
import { drain } from '../support/pg-drain.ts'

const { url, events, cold, mode } = JSON.parse(process.argv[2])
const quiet = new Logger(() => () => {})

if (mode === 'seed') await seed()
else {
  let onEvent = () => {}
  const pool = new pg.Pool({ connectionString: url, max: 10 })
  await drain({ events, cold }, async (tell) => {
    onEvent = tell
    const runner = await run({
      pgPool: pool,
      taskList: { relay: async () => onEvent(1) },
      noHandleSignals: true,
      logger: quiet,
      preset: {
        worker: {
          concurrentJobs: 24,
          pollInterval: 1000,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    })
    return () => runner.stop()
  })
  await pool.end()
}

async function seed() {
  const { keyOf, order } = await import('../support/pg-events.ts')
  const utils = await makeWorkerUtils({ connectionString: url, logger: quiet })
  await utils.migrate()
  for (let from = 0; from < events; from += 1000) {
    const jobs = Array.from({ length: Math.min(1000, events - from) }, (_, i) => {
      return { identifier: 'relay', payload: { key: keyOf(from + i), data: order(from + i) } }
    })
    await utils.addJobs(jobs)
  }
  await utils.release()
}
