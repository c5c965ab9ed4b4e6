import pg from 'pg'
import { afterEach } from 'vitest'
import type { Message } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { Projector } from '../../../src/projection/index.ts'
import { type RunningScript, runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { scale } from '../../support/scale.ts'
import { freshDatabase } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { orders } from '../shop.ts'

/** Milliseconds. A real one is suspended for longer than a real lease only where there is time for it. */
export const LEASE = scale({ test: 500, full: 1000, torture: 30_000 })

export const script = bundled(new URL('./projector-child.ts', import.meta.url))

/** A database with a log, and projectors in processes of their own. Call it once in a file. */
export function shops(timeout: number) {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })
  return { ends, shop }

  async function shop(on: Parameters<typeof freshDatabase>[0] = 'postgres') {
    const database = await freshDatabase(on)
    ends.push(() => database.drop())
    const pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    const db = postgres({ pool, outbox: { log: true }, projections: { idleTimeout: 500 } })
    await db.migrate()
    const job = (more: object) => ({ JOB: JSON.stringify({ url: database.url, lease: 500, ...more }) })
    return {
      pool,
      db,
      job,
      write: (...events: Message[]) => db.withTransaction((tx) => db.outbox.enqueue(tx, events)),
      child(more: object): RunningScript {
        const running = runScript({ script, env: job(more), timeout: timeout })
        ends.push(async () => {
          running.kill('SIGKILL')
          await running.finished.catch(() => {})
        })
        return running
      },
      /** Another projector, here, until everything is applied. */
      async recover() {
        const backoff = { min: 50, max: 50, jitter: 0 }
        const options = { lease: 500, poll: 50, parked: { backoff } }
        const projector = new Projector({ store: db, log: db.log, projections: [orders()], ...options })
        ends.push(() => projector.stop())
        await projector.start()
        const { position } = await db.log.head()
        await eventually(
          'all is applied',
          async () => {
            const checkpoint = await db.projections.load({ name: 'order_list_view', version: 1 })
            return checkpoint?.position === position && checkpoint.parked === 0
          },
          { limit: 60_000 },
        )
      },
      view: async (table = 'order_list_view') =>
        (await pool.query(`SELECT order_id, buyer_name, status, amount::int, item_count FROM ${table} ORDER BY 1`))
          .rows,
    }
  }
}
