import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { postgres } from '../../src/postgres/index.ts'
import { add, type Projection, Projector, patch, projection, put } from '../../src/projection/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { created, itemAdded, ListLog, Other, orders, type World, world } from './support.ts'

describeWith(['postgres'], 'tables that views are written to', () => {
  let at: World
  let log: ListLog
  const ends: (() => unknown)[] = []
  beforeEach(async () => {
    at = await world()
    log = new ListLog()
  })
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
    await at.end()
  })

  const keyed = (columns: string) =>
    projection('keyed', { version: 1, table: 'keyed', key: 'id', create: (t) => `CREATE TABLE ${t} (${columns})` }).on(
      Other,
      ({ data }) => put(String(data.n), {}),
    )

  /** A store of a role that may do with the tables what is granted, and no more. */
  async function storeOf(grants: (role: string) => string) {
    const role = `reader_${process.pid}_${Date.now()}`
    await at.pool.query(
      `CREATE ROLE ${role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO ${role}; ${grants(role)}`,
    )
    ends.push(() => at.pool.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`))
    const url = new URL(at.url)
    url.username = role
    const pool = new pg.Pool({ connectionString: url.href })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    return { role, db: postgres({ pool, projections: true }) }
  }

  function projector(store: ReturnType<typeof postgres<pg.PoolClient>>, given: Projection) {
    const made = new Projector({ store, log, projections: [given] })
    ends.push(() => made.stop())
    return made
  }

  test.each([
    ['no such column', 'other text PRIMARY KEY', /has no column "id"; give the projection a key of other/],
    ['not unique', 'id text', /is not unique/],
    ['unique together with another', 'id text, b int, UNIQUE (id, b)', /is not unique/],
    ['a type that writes one value in several ways', 'id numeric PRIMARY KEY', /is of type numeric/],
    ['texts of any case', 'id text COLLATE anycase PRIMARY KEY', /texts that differ may be equal/],
  ])('a key by which rows cannot be told apart is refused: %s', async (_, columns, message) => {
    await at.pool.query(`CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
    log.append(Other({ n: 1 }))
    const error = { code: 'INVALID_VIEW', message: expect.stringMatching(message) }
    await expect(at.projector(log, [keyed(columns)]).runOnce()).rejects.toMatchObject(error)
  })

  test('two processes begin at once: one creates the table, and the other goes on with it', async () => {
    const view = keyed('id text PRIMARY KEY')
    const client = await at.pool.connect()
    try {
      await client.query('BEGIN; CREATE TABLE keyed (id text PRIMARY KEY)')
      const opening = at.db.projections.view(view, false)
      const waits = `SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
      await eventually('it waits for the other', async () => (await at.pool.query(waits)).rowCount === 1)
      await client.query('COMMIT')
      expect(await opening).toMatchObject({ table: '"keyed"' })
    } finally {
      await client.query('ROLLBACK')
      client.release()
    }
  })

  test.each(['53100', '58030', '25006'])(
    '`create` that fails with the server’s own trouble (%s) is not to blame',
    async (code) => {
      const create = () => `DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '${code}'; END $$`
      const view = projection('bad', { version: 1, table: 'bad', key: 'id', create })
      await expect(at.db.projections.view(view, false)).rejects.toMatchObject({ code })
    },
  )

  test('row-level security that hides rows from the projector is refused: their changes would be lost', async () => {
    log.append(created('o1'))
    const first = at.projector(log, [orders()])
    await first.runOnce()
    await first.stop()
    const { db, role } = await storeOf(() => '')
    const policy = `CREATE POLICY others ON order_list_view TO ${role} USING (order_id <> 'o1')`
    await at.pool.query(`ALTER TABLE order_list_view ENABLE ROW LEVEL SECURITY; ${policy}`)
    ends.push(() => at.pool.query('DROP POLICY others ON order_list_view'))
    log.append(itemAdded('o1', 5))
    const running = projector(db, orders())
    const error = { code: 'INVALID_VIEW', message: expect.stringContaining('row-level security') }
    await expect(running.runOnce()).rejects.toMatchObject(error)
    // Those who look from elsewhere are told why.
    expect(await at.db.projections.load(orders())).toMatchObject({ problem: expect.stringContaining('row-level') })
    await running.stop()
    // The owner of the table sees every row.
    await at.projector(log, [orders()]).runOnce()
    expect(await at.rows()).toMatchObject([{ amount: '15' }])
    expect(await at.db.projections.load(orders())).toMatchObject({ problem: undefined })
  })

  test('a role that may not write the view: nothing is parked for it, and it goes on when it may', async () => {
    log.append(created('o1'))
    const first = at.projector(log, [orders()])
    await first.runOnce()
    await first.stop()
    const { db, role } = await storeOf((name) => `REVOKE UPDATE ON order_list_view FROM ${name}`)
    log.append(itemAdded('o1', 5), created('o2'))
    const running = projector(db, orders())
    for (let n = 0; n < 5; n++) await expect(running.runOnce()).rejects.toThrow(/permission denied/)
    expect(await at.db.projections.load(orders())).toMatchObject({ position: 1n, parked: 0 })
    await at.pool.query(`GRANT UPDATE ON order_list_view TO ${role}`)
    await running.runOnce()
    expect(await at.rows()).toMatchObject([{ amount: '15' }, { order_id: 'o2' }])
  })

  test('keys of any text; what PostgreSQL cannot store is parked alone', async () => {
    const odd = [
      '',
      ' ',
      "'",
      '"',
      '\\',
      '{a,b}',
      'NULL',
      '$1',
      '%',
      'a\nb',
      'ж\u0301',
      '😀',
      'x'.repeat(2000),
      'A',
      'a',
    ]
    const all = [...odd, 'a\0b', 'last']
    const view = projection('keyed', {
      ...{ version: 1, table: 'keyed', key: 'id' },
      create: (t) => `CREATE TABLE ${t} (id text PRIMARY KEY, n int NOT NULL, m int NOT NULL DEFAULT 0)`,
    }).on(Other, ({ data }) => [
      put(all[data.n]!, { n: data.n }),
      add(all[data.n]!, { m: 1 }),
      patch(all[data.n]!, { n: -data.n }),
    ])
    log.append(...all.map((_, n) => Other({ n })))
    const running = at.projector(log, [view])
    await running.runOnce()
    const { rows } = await at.pool.query('SELECT id, n, m FROM keyed ORDER BY n DESC')
    const expected = all.map((id, n) => ({ id, n: -n || 0, m: 1 })).filter(({ id }) => !id.includes('\0'))
    expect(rows).toEqual(expected)
    expect(await at.db.projections.parked({}, {})).toMatchObject([{ position: BigInt(odd.length + 1), attempts: 1 }])
  })

  test('a UUID in any of its spellings is one row, and a column that PostgreSQL generates is not written', async () => {
    const uuid = '0b6a8a53-8a1c-4c1b-9c5c-6c1a0f0b7a11'
    const spelled = [
      uuid,
      uuid.toUpperCase(),
      `{${uuid}}`,
      uuid.replaceAll('-', ''),
      '0b6a-8a53-8a1c-4c1b-9c5c-6c1a-0f0b-7a11',
    ]
    const view = projection('keyed', {
      ...{ version: 1, table: 'keyed', key: 'id', missing: 'park' },
      create: (t) =>
        `CREATE TABLE ${t} (id uuid PRIMARY KEY, n int NOT NULL, double int GENERATED ALWAYS AS (n * 2) STORED)`,
    }).on(Other, ({ data }) => {
      if (data.n === 0) return put(uuid, { n: 0 })
      return data.n > spelled.length ? patch(uuid, { double: 1 }) : add(spelled[data.n - 1]!, { n: 1 })
    })
    log.append(...Array.from({ length: spelled.length + 2 }, (_, n) => Other({ n })))
    await at.projector(log, [view]).runOnce()
    expect(await at.rows('keyed')).toEqual([{ id: uuid, n: 5, double: 10 }])
    expect(await at.db.projections.parked({}, {})).toMatchObject([
      { position: BigInt(spelled.length + 2), error: expect.stringContaining('generated') },
    ])
  })
})
