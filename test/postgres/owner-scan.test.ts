import { expect, test } from 'vitest'
import { systemClock } from '../../src/core/index.ts'
import type { Connection } from '../../src/drivers/sql.ts'
import { OwnerScan } from '../../src/postgres/owner-scan.ts'
import { idOf } from '../../src/postgres/row.ts'
import { outboxOn, Placed } from './support.ts'

test('what is found blocked is not handed out by the same take, though nothing blocks it any more by then', async () => {
  const t = await outboxOn()
  const [first, second] = [Placed({ n: 1 }, { key: 'a' }), Placed({ n: 2 }, { key: 'a' })]
  await t.enqueue([first, second])
  await t.pool.query(`UPDATE outbox SET state = 'held' WHERE event_id = $1`, [first.id])
  const connection = await t.db.database.connect({ prepare: false })
  // Published by a settlement that comes in between two reads of one take.
  const reader = {
    async read(...args: Parameters<Connection['read']>) {
      const rows = await connection.read(...args)
      await t.pool.query(`UPDATE outbox SET state = 'published', published_at = now() WHERE event_id = $1`, [first.id])
      return rows
    },
  }
  const scan = new OwnerScan(reader as Connection, t.outbox.names, {}, systemClock, true)
  const { deliveries, blocked } = await scan.take({ count: 10, bytes: 1e6 }, true)
  expect(blocked.map(idOf)).toEqual([second.id])
  expect(deliveries).toEqual([])
  await connection.release()
  await t.end()
})
