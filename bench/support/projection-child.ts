/** Our projector as a contestant: it has the whole log before it. */
import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { Projector } from 'waybill/projection'
import { drain } from './pg-drain.ts'
import { customers } from './projection-view.ts'

const { url, events, cold, batch } = JSON.parse(process.argv[2]!) as {
  url: string
  events: number
  cold: number
  batch: number
}
const pool = new pg.Pool({ connectionString: url, max: 10 })
const db = postgres({ pool, outbox: { log: true }, projections: true })

await drain({ events, cold }, async (onEvent) => {
  const projections = [customers(() => onEvent(1))]
  const projector = new Projector({ store: db, log: db.log, projections, batch })
  const running = projector.runOnce()
  return async () => {
    await running
    await projector.stop()
  }
})
await pool.end()
