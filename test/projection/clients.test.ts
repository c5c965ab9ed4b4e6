import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { Relay } from '../../src/outbox/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { Projector } from '../../src/projection/index.ts'
import { collector, recordTelemetry } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { created, itemAdded, orders, type World, world } from './support.ts'

describeWith(['postgres'], 'projections of services that are set up in other ways', () => {
  let at: World
  const ends: (() => unknown)[] = []
  beforeEach(async () => {
    at = await world('postgres', { outbox: { log: true } })
  })
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
    await at.end()
  })

  const poolOf = ({ user, ...options }: pg.PoolConfig) => {
    const url = new URL(at.url)
    if (user !== undefined) url.username = user
    const pool = new pg.Pool({ connectionString: url.href, ...options })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    return pool
  }

  test.each([1, 2])(
    'a pool of %i: it polls instead of keeping connections for notifications, and says so',
    async (max) => {
      const warnings = recordTelemetry(['warning'])
      ends.push(() => warnings.stop())
      const db = postgres({ pool: poolOf({ max }), outbox: { log: true }, projections: true })
      const projector = new Projector({ store: db, log: db.log, projections: [orders()], poll: 20 })
      ends.push(() => projector.stop())
      await projector.start()
      const polls = () => warnings.of('warning').some(({ message }) => /polls: .*keeps 2, to be woken/.test(message))
      await eventually('it polls', polls)
      for (const id of ['o1', 'o2']) {
        await at.db.withTransaction((tx) => at.db.outbox.enqueue(tx, created(id)))
        await eventually('it is there', async () => (await at.rows()).some(({ order_id }) => order_id === id))
      }
    },
  )

  test('a role that may only write: its transactions commit, and its tokens are good for what they say', async () => {
    const role = `writer_${process.pid}_${Date.now()}`
    await at.pool.query(`CREATE ROLE ${role} LOGIN; GRANT SELECT, INSERT ON outbox TO ${role}`)
    ends.push(() => at.pool.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`))
    const writer = postgres({ pool: poolOf({ user: role }), outbox: { log: true } })
    const receipts = await writer.withTransaction((tx) => writer.outbox.enqueue(tx, created('o1')))
    expect((await poolOf({ user: role }).query('SELECT current_user AS name')).rows).toEqual([{ name: role }])
    const token = writer.log.token(receipts)
    expect(token).toEqual({ log: 'outbox', incarnation: undefined, positions: [1n] })
    const projector = at.projector(at.db.log, [orders()])
    await projector.runOnce()
    expect(await projector.view(orders()).waitFor(token)).toEqual({ answer: 'reached' })
  })

  test('an outbox that was in use before it was a log: what was before is not guessed at', async () => {
    const db = postgres({ pool: at.pool, outbox: { table: 'used' }, projections: true })
    await db.migrate()
    await db.withTransaction((tx) => db.outbox.enqueue(tx, created('before')))
    const log = postgres({ pool: at.pool, outbox: { table: 'used', log: true }, projections: true })
    await log.migrate()
    await log.withTransaction((tx) => log.outbox.enqueue(tx, [itemAdded('before', 5), created('after')]))
    const projector = (projection: ReturnType<typeof orders>) => {
      const made = new Projector({ store: log, log: log.log, projections: [projection] })
      ends.push(() => made.stop())
      return made
    }
    const refused = projector(orders())
    await expect(refused.runOnce()).rejects.toMatchObject({
      code: 'LOG_TRIMMED',
      message: expect.stringContaining(`begins: 'kept'`),
    })
    expect(await log.projections.list()).toEqual([])
    await refused.stop()
    // Its table is created, like any other.
    await projector(orders(undefined, { begins: 'kept' })).runOnce()
    expect((await at.rows()).map(({ order_id }) => order_id)).toEqual(['after'])
    // And what was before may be put into it.
    await at.pool.query('CREATE TABLE filled (LIKE order_list_view INCLUDING ALL)')
    const values = `('before', 'b1', 'Ann', 'new', 10, 0, now())`
    await at.pool.query(`INSERT INTO filled VALUES ${values}`)
    const filled = orders(undefined, { begins: 'kept', version: 2, table: 'filled' })
    const running = projector(filled)
    await running.runOnce()
    await running.stop()
    expect(await at.rows('filled')).toMatchObject([
      { order_id: 'after' },
      { order_id: 'before', amount: '15', item_count: 1 },
    ])
    // Everything is read and trimmed: whoever takes over goes on.
    const relay = new Relay({ from: log.outbox, to: collector() })
    await relay.runOnce()
    await relay.stop()
    await log.trimLog((await log.log.head()).position + 1n, { by: 'test', note: 'all is read' })
    await log.withTransaction((tx) => log.outbox.enqueue(tx, itemAdded('before', 1)))
    await projector(filled).runOnce()
    expect(await at.rows('filled')).toMatchObject([{}, { order_id: 'before', amount: '16', item_count: 2 }])
  })

  test('somebody locks the view for long: nothing is parked for it, and it goes on', async () => {
    await at.db.withTransaction((tx) => at.db.outbox.enqueue(tx, [created('o1'), created('o2')]))
    const db = postgres({
      pool: poolOf({ options: '-c lock_timeout=20ms' }),
      outbox: { log: true },
      projections: true,
    })
    const projector = new Projector({ store: db, log: db.log, projections: [orders()] })
    ends.push(() => projector.stop())
    await projector.runOnce()
    await at.db.withTransaction((tx) => at.db.outbox.enqueue(tx, [itemAdded('o1', 1), itemAdded('o2', 1)]))
    const locked = await at.pool.connect()
    await locked.query('BEGIN; LOCK TABLE order_list_view')
    for (let n = 0; n < 6; n++) await expect(projector.runOnce()).rejects.toMatchObject({ code: '55P03' })
    await locked.query('COMMIT')
    locked.release()
    expect(await db.projections.parked({}, {})).toEqual([])
    await projector.runOnce()
    expect(await at.rows()).toMatchObject([{ amount: '11' }, { amount: '11' }])
  })
})
