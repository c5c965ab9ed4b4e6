import { expect, test } from 'vitest'
import type { Message } from '../../../src/index.ts'
import { seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, privatePostgres } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { changed, created, itemAdded } from '../shop.ts'
import { shops } from './support.ts'

const LONG = { timeout: scale({ test: 120_000, full: 300_000, torture: 3_600_000 }) }

describeWith(['postgres'], 'projectors whose database is restarted', () => {
  const { shop, ends } = shops(LONG.timeout)

  test(
    'two processes, ten projections, PostgreSQL restarted again and again: every view is the fold of what was committed',
    LONG,
    async () => {
      const restarts = scale({ test: 2, full: 2, torture: 10 })
      const server = await privatePostgres()
      ends.push(() => server.stop())
      const { write, child, view, db, pool } = await shop(server)
      const two = [child({ views: 10, lease: 1000, batch: 100 }), child({ views: 10, lease: 1000, batch: 100 })]
      for (const running of two) await running.line('ready', 60_000)
      const random = seededRandom(16)
      const orders = new Map<string, { status: string; amount: number; item_count: number }>()
      const retried = async (events: Message[]) => {
        // The same ids again change nothing, so what a restart has cut off is written again.
        await eventually(
          'it is written',
          () =>
            write(...events).then(
              () => true,
              () => undefined,
            ),
          { limit: 60_000 },
        )
      }
      for (let restart = 0; restart <= restarts; restart++) {
        for (let n = 0; n < 10; n++) {
          const id = `o${restart}-${n}`
          const events: Message[] = [created(id), itemAdded(id, 1)]
          orders.set(id, { status: 'new', amount: 11, item_count: 1 })
          const ids = [...orders.keys()]
          const other = ids[Math.floor(random.next() * ids.length)]!
          events.push(itemAdded(other, 2), changed(other, `s${n}`))
          const order = orders.get(other)!
          orders.set(other, { status: `s${n}`, amount: order.amount + 2, item_count: order.item_count + 1 })
          await retried(events)
        }
        if (restart === restarts) break
        await server.restart('immediate')
        console.log(`${restart + 1} of ${restarts} restarts, ${orders.size} orders written`)
      }
      const { position } = await eventually('it is up', () => db.log.head().catch(() => undefined))
      await eventually(
        'all have caught up',
        async () => {
          const list = await db.projections.list().catch(() => [])
          return list.length === 10 && list.every((one) => one.position === position && one.parked === 0)
        },
        { limit: LONG.timeout, seen: async () => db.projections.list() },
      )
      const expected = [...orders].map(([order_id, order]) => ({ order_id, buyer_name: 'name of b1', ...order }))
      expected.sort((a, b) => (a.order_id < b.order_id ? -1 : 1))
      for (let i = 0; i < 10; i++) {
        expect(await view(i === 0 ? undefined : `order_list_view_${i}`)).toEqual(expected)
      }
      await pool.query('SELECT 1')
    },
  )
})
