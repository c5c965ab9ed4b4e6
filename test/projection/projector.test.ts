import { afterEach, beforeEach, expect, test } from 'vitest'
import { fieldsOf } from '../../src/core/log-line.ts'
import { Reject } from '../../src/index.ts'
import { projection, put, write } from '../../src/projection/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import {
  CREATE,
  changed,
  created,
  itemAdded,
  ListLog,
  OrderCreated,
  Other,
  orders,
  renamed,
  type World,
  world,
} from './support.ts'

describeWith(['postgres'], 'projector', () => {
  let at: World
  let log: ListLog
  beforeEach(async () => {
    at = await world()
    log = new ListLog()
  })
  afterEach(() => at.end())

  test('events of all kinds, in few batches: the view is as if they had been applied one by one', async () => {
    log.append(created('o1'), created('o2', { buyerId: 'b2' }), changed('o1', 'paid'), renamed('b1', 'Ann'))
    log.append(
      itemAdded('o1', 0.1),
      itemAdded('o1', 0.2),
      created('o3'),
      changed('o3', 'paid'),
      changed('missing', 'x'),
    )
    await at.projector(log, [orders()]).runOnce()
    expect(await at.rows()).toMatchObject([
      { order_id: 'o1', buyer_name: 'Ann', status: 'paid', amount: '10.3', item_count: 2 },
      { order_id: 'o2', buyer_name: 'name of b2', status: 'new', amount: '10', item_count: 0 },
      { order_id: 'o3', buyer_name: 'name of b1', status: 'paid' },
    ])
    expect(await at.db.projections.load({ name: 'order_list_view', version: 1 })).toMatchObject({
      position: 9n,
      log: 'list',
      parked: 0,
      problem: undefined,
      builtAt: expect.any(Date),
    })
  })

  test('started, it applies what is written from then on, and passes over what it has no handler for', async () => {
    const projector = await at.projector(log, [orders()], { poll: '1m' }).start()
    log.append(created('o1'))
    await eventually('it is there', async () => (await at.rows().catch(() => [])).length === 1)
    log.append(Other({ n: 1 }), created('o2'))
    await eventually('it is there', async () => (await at.rows()).length === 2)
    await eventually('it has moved', () => projector.projections()[0]!.position === '3')
    expect(projector.projections()[0]).toMatchObject({ state: 'running', position: '3', parked: 0 })
    await eventually('nothing is left', () => projector.projections()[0]!.lag?.seconds === 0)
    // A health check writes it as JSON, which knows no bigint.
    const shown = JSON.parse(JSON.stringify(projector.status()))
    expect(shown).toMatchObject({ state: 'running', children: [{}, {}, { position: '3', lag: { seconds: 0 } }] })
  })

  test('those that have caught up share one read of the log', async () => {
    const ten = Array.from({ length: 10 }, (_, i) => {
      const create = (table: string) => `CREATE TABLE ${table} (id text PRIMARY KEY, status text)`
      return projection(`view_${i}`, { version: 1, table: `view_${i}`, key: 'id', create }).on(
        OrderCreated,
        ({ data }) => put(data.orderId, { status: data.status }),
      )
    })
    const projector = await at.projector(log, ten, { poll: '1m' }).start()
    const everywhere = (n: bigint) => () => projector.projections().every(({ position }) => position === `${n}`)
    log.append(created('o0'))
    await eventually('all have caught up', everywhere(1n))
    await eventually('they rest', async () => {
      const before = log.reads
      await new Promise((resolve) => setTimeout(resolve, 100))
      return log.reads === before
    })
    const before = log.reads
    log.append(created('o1'))
    await eventually('all have it', everywhere(2n))
    // One that finds it, one that finds nothing more, and those that were read ahead.
    expect(log.reads - before).toBeLessThanOrEqual(3)
  })

  test('held back, it looks again soon with the idle flag down, or every writer would notify', async () => {
    const projector = await at.projector(log, [orders()], { poll: '1m' }).start()
    await eventually('it waits to be told', () => log.waiting === 1)
    log.heldBy = { pid: 7, prepared: undefined, since: new Date() }
    log.append(created('o1'))
    const [busy, reads] = [log.busy, log.reads]
    await eventually('it looks again and again', () => log.reads > reads + 5)
    expect(log.busy).toBeGreaterThan(busy)
    expect(log.waiting).toBe(0)
    expect(await at.rows()).toEqual([])
    log.heldBy = undefined
    await eventually('it is there', async () => (await at.rows()).length === 1)
    await eventually('it waits to be told', () => log.waiting === 1)
    expect(projector.projections()[0]).toMatchObject({ heldSeconds: 0 })
  })

  test('columns of any type: each gets the value that was given, or refuses it', async () => {
    const create = (table: string) => [
      "CREATE TYPE mood AS ENUM ('good', 'bad')",
      'CREATE DOMAIN positive AS int CHECK (VALUE > 0)',
      `CREATE TABLE ${table} (id bigint PRIMARY KEY, u uuid, t timestamptz, d date, n numeric(20, 5), i bigint, f float8,
        b boolean, y bytea, j json, jb jsonb, ta text[], ia int[][], ip inet, iv interval, e mood, p positive, v varchar(3),
        "Odd ""name" text)`,
    ]
    const values = {
      ...{ u: '0b6a8a53-8a1c-4c1b-9c5c-6c1a0f0b7a11', t: new Date('2026-01-02T03:04:05.678Z'), d: '2026-02-28' },
      ...{
        n: '12345678901.00001',
        i: 2n ** 62n,
        f: 0.1,
        b: false,
        y: new Uint8Array([0, 255]),
        j: 'text',
        jb: { a: [1, null] },
      },
      ...{
        ta: ['a,b', '"q"', '\\', 'NULL', '', '{}'],
        ia: [
          [1, 2],
          [3, 4],
        ],
        ip: '10.0.0.1',
        iv: '2 days',
        e: 'good',
        p: 1,
      },
      ...{ v: 'abc', 'Odd "name': 'x' },
    }
    let given: Record<string, unknown> = values
    const all = projection('types', { version: 1, table: 'types', key: 'id', create }).on(Other, ({ data }) =>
      put(data.n, given as typeof values),
    )
    const projector = at.projector(log, [all])
    log.append(Other({ n: 1 }), Other({ n: 2 }))
    await projector.runOnce()
    const { rows } = await at.pool.query(
      `SELECT to_jsonb(types) - 'iv' - 'y' - 't' - 'id' AS row, iv::text, encode(y, 'hex') AS y, t FROM types ORDER BY id`,
    )
    const { iv, y, t, ...rest } = values
    const row = { ...rest, i: 2 ** 62, n: 12345678901.00001 }
    expect(rows).toEqual([1, 2].map(() => ({ row, iv, y: '00ff', t })))
    const refused = { v: 'abcd', e: 'sad', p: 0, i: 'x', d: '2026-02-30', n: '1e40', ta: 'no list' }
    for (const [column, value] of Object.entries(refused)) {
      given = { [column]: value }
      log.append(Other({ n: 3 }))
      // An enum may get the value yet: it is tried some times before the event is blamed.
      const ran = () =>
        projector.runOnce().then(
          () => true,
          () => false,
        )
      await eventually('it is parked', ran)
      const parked = await at.db.projections.parked({}, {})
      expect(parked.at(-1), column).toMatchObject({ attempts: 1, error: expect.any(String) })
      await at.db.projections.skip(all, [parked.at(-1)!.position], { by: 'test', note: 'next' })
    }
    expect(await at.rows('types')).toHaveLength(2)
  })

  test('an event that cannot be written is found by halving and parked alone; later ones of its key wait behind it', async () => {
    const telemetry = recordTelemetry()
    const many = Array.from({ length: 500 }, (_, i) => created(`o${String(i).padStart(3, '0')}`))
    // The column refuses it: a text with NUL.
    many[300] = created('o300', { status: 'a\u0000b' })
    log.append(...many, itemAdded('o300', 5), changed('o301', 'paid'))
    const projector = at.projector(log, [orders()])
    await projector.runOnce()
    telemetry.stop()
    expect(await at.rows()).toHaveLength(499)
    expect((await at.rows()).find(({ order_id }) => order_id === 'o301')).toMatchObject({ status: 'paid' })
    const parked = await at.db.projections.parked({}, {})
    expect(parked).toMatchObject([
      { position: 301n, key: 'o300', attempts: 1, error: expect.stringContaining('invalid byte sequence') },
      { position: 501n, key: 'o300', attempts: 0, error: undefined, nextAt: undefined },
    ])
    expect(telemetry.of('projection.parked')).toHaveLength(1)
    expect((await at.db.projections.load({ name: 'order_list_view', version: 1 }))?.position).toBe(502n)
  })

  test('a handler that throws, data that does not fit the schema, a column that does not exist: parked, each with its reason', async () => {
    const bad = projection('bad', { version: 1, table: 'bad', key: 'order_id', create: CREATE }).on(
      OrderCreated,
      ({ data }) => {
        if (data.orderId === 'throws') throw new Error('no idea')
        if (data.orderId === 'column') return put(data.orderId, { stauts: 'x' })
        if (data.orderId === 'new column') return put(data.orderId, { discount: 1 })
        if (data.orderId === 'absent') return put(data.orderId, { status: undefined as never })
        if (data.orderId === 'nothing') return 'x' as never
        if (data.orderId === 'later') return Promise.resolve(put('later', {})) as never
        const { orderId, buyerId, status, amount, at } = data
        return put(orderId, { order_id: orderId, buyer_id: buyerId, buyer_name: 'x', status, amount, created_at: at })
      },
    )
    const wrong = created('schema').withData({ orderId: 1 })
    log.append(
      created('throws'),
      created('column'),
      created('new column'),
      created('absent'),
      created('nothing'),
      created('later'),
      wrong,
      created('good'),
    )
    const telemetry = recordTelemetry(['projection.parked'])
    await at.projector(log, [bad]).runOnce()
    telemetry.stop()
    const [thrown] = telemetry.of('projection.parked')
    expect(fieldsOf(thrown!)).toMatchObject({
      reason: 'Error: no idea',
      at: expect.stringMatching(/projector\.test\.ts:\d+:\d+$/),
    })
    expect((await at.rows('bad')).map(({ order_id }) => order_id)).toEqual(['good'])
    const errors = (await at.db.projections.parked({ failed: true }, {})).map(({ error }) => error)
    expect(errors).toEqual([
      expect.stringContaining('no idea'),
      expect.stringContaining('did you mean "status"?'),
      expect.stringContaining('bad has no column "discount"; add it by hand'),
      expect.stringContaining('"status" is undefined; give null, or leave it out'),
      expect.stringContaining('a handler returned "x"'),
      expect.stringContaining('it is a promise, and handlers are not async'),
      expect.stringContaining('INVALID_PAYLOAD'),
    ])
  })

  test('a parked event is enriched anew and tried again; then its key goes on in order', async () => {
    let name = 'Old'
    let broken = true
    const rejecting = orders(() => {
      if (broken) throw new Reject('no such user')
      return name
    })
    const projector = at.projector(log, [rejecting], { parked: { backoff: { min: 0, max: 0, jitter: 0 } } })
    log.append(created('o1'), changed('o1', 'paid'), itemAdded('o1', 5))
    await projector.runOnce()
    expect(await at.rows()).toEqual([])
    expect((await at.db.projections.parked({}, {})).map(({ attempts }) => attempts > 0)).toEqual([true, false, false])
    broken = false
    name = 'New'
    await eventually('it has been tried again', async () => {
      await projector.runOnce()
      return (await at.db.projections.parked({}, {})).length === 0
    })
    expect(await at.rows()).toMatchObject([{ buyer_name: 'New', status: 'paid', amount: '15', item_count: 1 }])
    log.append(changed('o1', 'sent'))
    await projector.runOnce()
    expect(await at.rows()).toMatchObject([{ status: 'sent' }])
  })

  test('a column that was missing is there by now: what was parked for it is applied, without a restart', async () => {
    const noted = projection('noted', {
      version: 1,
      table: 'noted',
      key: 'id',
      create: (t) => `CREATE TABLE ${t} (id text PRIMARY KEY)`,
    }).on(OrderCreated, ({ data }) => put(data.orderId, { note: data.status }))
    const projector = at.projector(log, [noted], { parked: { backoff: { min: 0, max: 0, jitter: 0 } } })
    log.append(created('o1'))
    await projector.runOnce()
    expect(await at.db.projections.parked({}, {})).toMatchObject([{ error: expect.stringContaining('no column') }])
    await at.pool.query('ALTER TABLE noted ADD COLUMN note text')
    await eventually('it has been tried again', async () => {
      await projector.runOnce()
      return (await at.db.projections.parked({}, {})).length === 0
    })
    expect(await at.rows('noted')).toEqual([{ id: 'o1', note: 'new' }])
    log.append(created('o2'))
    await projector.runOnce()
    expect(await at.rows('noted')).toHaveLength(2)
  })

  /** As whoever takes over does first. */
  const takeOver = () =>
    at.db.projections.open(orders(), { id: log.id, incarnation: log.incarnation }, String(2n ** 40n), 0n)

  test('one that waits for another says whose right it is, until when, and when it asks again', async () => {
    const first = await at.projector(log, [orders()], { name: 'web-1' }).start()
    await eventually('the first has it', () => first.projections()[0]!.position !== undefined)
    const second = await at.projector(log, [orders()], { name: 'web-2', poll: '5s' }).start()
    await eventually('the second waits', () => second.projections()[0]!.state === 'waiting')
    const { reason, retryAt } = second.projections()[0]!
    expect(reason).toMatch(/^another projector runs it: web-1 [\w-]+, until [\d-]+T[\d:.]+Z unless it is renewed$/)
    expect(retryAt!.getTime() - Date.now()).toBeLessThanOrEqual(5000)
    expect(second.status()).toMatchObject({ state: 'waiting', reason: expect.stringContaining('web-1') })
  })

  test('another has the right to it by now: what it has read is not written', async () => {
    const projector = at.projector(log, [orders()])
    log.append(created('o1'))
    await projector.runOnce()
    await takeOver()
    log.append(itemAdded('o1', 5))
    await expect(projector.runOnce()).rejects.toMatchObject({ code: 'FENCED' })
    expect(await at.rows()).toMatchObject([{ order_id: 'o1', amount: '10' }])
    expect(await at.db.projections.load(orders())).toMatchObject({ position: 1n })
  })

  test('another has the right to it by now: what is parked is not tried', async () => {
    let broken = true
    const clock = new FakeClock()
    const rejecting = orders((id) => {
      if (broken) throw new Reject('no such user')
      return id
    })
    const parked = { backoff: { min: 0, max: 0, jitter: 0 } }
    const projector = at.projector(log, [rejecting], { clock, parked })
    log.append(created('o1'))
    await projector.runOnce()
    await takeOver()
    broken = false
    await clock.advance(1000)
    await expect(projector.runOnce()).rejects.toMatchObject({ code: 'FENCED' })
    expect(await at.rows()).toEqual([])
    expect(await at.db.projections.parked({}, {})).toHaveLength(1)
  })

  test('the checkpoint is not where it was left: what was applied meanwhile is not applied again', async () => {
    const projector = at.projector(log, [orders()])
    log.append(created('o1'))
    await projector.runOnce()
    // Such as a commit of its own whose answer was lost.
    log.append(itemAdded('o1', 5))
    await at.pool.query('UPDATE order_list_view SET amount = 15')
    await at.pool.query('UPDATE projections SET position = 2')
    await projector.runOnce()
    log.append(itemAdded('o1', 1))
    await projector.runOnce()
    expect(await at.rows()).toMatchObject([{ order_id: 'o1', amount: '16' }])
  })

  test('at the bound of parked events it stops and says so; when one is skipped, it goes on', async () => {
    const projector = at.projector(log, [orders(undefined, { missing: 'park' })], { parked: { limit: 2 } })
    const id = { name: 'order_list_view', version: 1 }
    log.append(changed('o1', 'x'), changed('o2', 'x'))
    await projector.runOnce()
    log.append(changed('o3', 'x'))
    await expect(projector.runOnce()).rejects.toMatchObject({ code: 'PARKED_FULL' })
    expect(await at.db.projections.load(id)).toMatchObject({
      position: 2n,
      problem: expect.stringContaining('2 events are parked'),
    })
    await at.db.projections.skip(id, [1n], { by: 'ann', note: 'a test order' })
    await eventually('it goes on', async () => {
      await projector.runOnce().catch(() => {})
      return (await at.db.projections.load(id))?.position === 3n
    })
    expect(await at.db.projections.load(id)).toMatchObject({ problem: undefined, parked: 2 })
    expect(await at.db.projections.audits(id)).toMatchObject([
      { action: 'skip', by: 'ann', note: 'a test order', positions: [1n] },
    ])
  })

  test('missing rows: passed over, parked until they are there, or the projection stops', async () => {
    log.append(changed('o1', 'paid'), created('o2'))
    await at.projector(log, [orders()]).runOnce()
    expect((await at.rows()).map(({ order_id }) => order_id)).toEqual(['o2'])
    const parking = orders(undefined, { missing: 'park', table: 'parking', version: 2 })
    await at.projector(log, [parking]).runOnce()
    expect(await at.db.projections.parked({ projection: parking }, {})).toMatchObject([{ position: 1n, attempts: 1 }])
    const failing = orders(undefined, { missing: 'fail', table: 'failing', version: 3 })
    await expect(at.projector(log, [failing]).runOnce()).rejects.toMatchObject({ code: 'MISSING_ROW' })
    expect(await at.rows('failing')).toEqual([])
  })

  test('SQL of one’s own runs in the transaction of the checkpoint, in its place among the changes', async () => {
    const own = projection('own', {
      version: 1,
      table: 'own',
      key: 'id',
      create: (table) => `CREATE TABLE ${table} (id text PRIMARY KEY, n int)`,
    }).on(OrderCreated, ({ data }) => [
      put(data.orderId, { n: data.amount }),
      write<import('pg').PoolClient>(async ({ tx, table }) => {
        await tx.query(`UPDATE ${table} SET n = n * 2 WHERE id = $1`, [data.orderId])
        if (data.status === 'bad') throw new Error('refused')
      }),
    ])
    log.append(created('a', { amount: 1 }), created('b', { amount: 2, status: 'bad' }), created('c', { amount: 3 }))
    await at.projector(log, [own]).runOnce()
    expect(await at.rows('own')).toEqual([
      { id: 'a', n: 2 },
      { id: 'c', n: 6 },
    ])
    expect(await at.db.projections.parked({}, {})).toMatchObject([
      { position: 2n, error: expect.stringContaining('refused') },
    ])
  })
})
