import { afterEach, beforeEach, expect, test } from 'vitest'
import { Projector } from '../../src/projection/index.ts'
import { catalog, type TestDatabase } from '../postgres/admin-support.ts'
import { describeWith } from '../support/services.ts'
import { CREATE, created, itemAdded, ListLog, orders, type World, world } from './support.ts'

describeWith(['postgres'], 'the tables of projections', () => {
  let at: World
  beforeEach(async () => {
    at = await world()
  })
  afterEach(() => at.end())

  test('those of version 1 are upgraded in place, while code of version 1 goes on with them', async () => {
    const { db, pool } = at
    const query = async (text: string) => (await pool.query(text)).rows
    const tables = () => catalog({ query } as TestDatabase)
    const fresh = await tables()
    const { versions, drop } = db.projections.names.schema()
    await query(`${drop}; ${versions[0]}; UPDATE waybill_schema SET version = 1 WHERE name = 'projections'`)
    const log = new ListLog()
    log.append(created('o1'), itemAdded('o1', 1))
    // As version 1 left it, having applied the first event.
    await query(`${CREATE('order_list_view').join(';')};
      INSERT INTO order_list_view VALUES ('o1', 'b1', 'Ann', 'new', 10, 0, now());
      INSERT INTO projections (name, version, log, incarnation, position, epoch, built_at)
        VALUES ('order_list_view', 1, 'list', 'first', 1, 0, now());
      INSERT INTO projections_parked (name, version, position, type, message) VALUES ('order_list_view', 2, 1, 'x', '{}')`)
    const run = async () => {
      const projector = new Projector({ store: db, log, projections: [orders()] })
      await projector.runOnce().finally(() => projector.stop())
      const [row] = await query('SELECT amount::text AS amount FROM order_list_view')
      return { ...row, ...(await db.projections.load(orders())) }
    }
    await expect(run()).rejects.toMatchObject({ code: 'NOT_MIGRATED' })
    for (const from of [1, 2]) {
      expect((await db.migrate()).find(({ table }) => table === 'projections')).toMatchObject({ from, to: 2 })
    }
    expect(await query('SELECT count(*)::int AS n FROM projections_parked')).toEqual([{ n: 1 }])
    expect(await run()).toMatchObject({ amount: '11', position: 2n, event: log.events[1]!.id })
    // Code of version 1 takes it over for one event, and gives it back.
    log.append(itemAdded('o1', 1))
    await query(`UPDATE order_list_view SET amount = 12; UPDATE projections SET position = 3`)
    expect(await run()).toMatchObject({ amount: '12', position: 3n, event: undefined })
    log.append(itemAdded('o1', 1))
    expect(await run()).toMatchObject({ amount: '13', position: 4n, event: log.events[3]!.id })
    await query('DROP TABLE order_list_view')
    expect(await tables()).toEqual(fresh)
  })
})
