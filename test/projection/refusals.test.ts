import { afterEach, beforeEach, expect, test } from 'vitest'
import { Reject } from '../../src/index.ts'
import { ProjectionAdmin, recentlyWritten, viewOf } from '../../src/projection/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { changed, created, ListLog, orders, type World, world } from './support.ts'

describeWith(['postgres'], 'projections that must not run', () => {
  let at: World
  let log: ListLog
  beforeEach(async () => {
    at = await world()
    log = new ListLog()
    log.append(created('o1'), created('o2'))
    const first = at.projector(log, [orders()])
    await first.runOnce()
    await first.stop()
  })
  afterEach(() => at.end())

  const again = () => at.projector(log, [orders()]).runOnce()

  test('a checkpoint ahead of its log, a log made anew, another log: nothing is applied, and it is said', async () => {
    log.next = 2n
    await expect(again()).rejects.toMatchObject({ code: 'CHECKPOINT_AHEAD' })
    log.next = 4n
    log.incarnation = 'second'
    await expect(again()).rejects.toMatchObject({ code: 'OTHER_LOG' })
    log = new ListLog('another')
    await expect(again()).rejects.toMatchObject({ code: 'OTHER_LOG' })
    expect(await at.rows()).toHaveLength(2)
  })

  test('a table that is gone, or was filled by others', async () => {
    const other = orders(undefined, { version: 2 })
    await expect(at.projector(log, [other]).runOnce()).rejects.toMatchObject({ code: 'VIEW_NOT_EMPTY' })
    await at.pool.query('DROP TABLE order_list_view')
    await expect(again()).rejects.toMatchObject({ code: 'NO_VIEW' })
  })

  test('a table that is dropped under a projection that runs: said as such, and no event is blamed', async () => {
    const projector = at.projector(log, [orders()])
    await projector.runOnce()
    await at.pool.query('ALTER TABLE order_list_view RENAME TO away')
    log.append(created('o3'))
    for (let times = 0; times < 5; times++) {
      await expect(projector.runOnce()).rejects.toMatchObject({ code: 'NO_VIEW', cause: { code: '42P01' } })
    }
    const admin = new ProjectionAdmin({ store: at.db, log })
    expect((await admin.status())[0]?.problem).toContain('[NO_VIEW]: order_list_view does not exist any more')
    expect(await admin.parked()).toEqual([])
    await at.pool.query('ALTER TABLE away RENAME TO order_list_view')
    await projector.runOnce()
    expect(await at.rows()).toHaveLength(3)
  })

  test('what is no database, or no projection, is refused by name', async () => {
    const advice = 'store is an object; give postgres({ pool, projections: true })'
    expect(() => at.projector(log, [orders()], { store: at.pool as never })).toThrow(`projector: ${advice}`)
    expect(() => new ProjectionAdmin({ store: at.pool as never })).toThrow(`projection admin: ${advice}`)
    expect(() => viewOf(at.pool as never, orders())).toThrow(`viewOf: ${advice}`)
    const admin = new ProjectionAdmin({ store: at.db })
    const text = 'retry: "order_list_view" is not a projection; give it, or { name, version }'
    await expect(admin.retry('order_list_view' as never, [1n], { by: 'ann', note: 'why' })).rejects.toThrow(text)
  })

  test('retry and skip of what is parked: who, why, when and which is kept; a try is made at once; others are left alone', async () => {
    const admin = new ProjectionAdmin({ store: at.db, log })
    let broken = true
    const failing = orders(
      (id) => {
        if (broken) throw new Reject(`no user ${id}`)
        return id
      },
      { version: 2, table: 'failing' },
    )
    const id = { name: failing.name, version: failing.version }
    log.append(changed('o1', 'paid'), created('o3'))
    const clock = new FakeClock()
    const parked = { backoff: { min: '10m', max: '10m', jitter: 0 } } as const
    const projector = at.projector(log, [failing], { clock, parked })
    await projector.runOnce()
    const positions = async () => (await admin.parked({ projection: id })).map(({ position }) => position)
    expect(await positions()).toEqual([1n, 2n, 3n, 4n])
    const who = { by: 'ann', note: 'the user exists now' }
    for (const wrong of [{ by: '', note: 'x' }, { by: 'ann', note: '' }, undefined as never]) {
      await expect(admin.retry(id, [1n], wrong)).rejects.toMatchObject({ code: 'INVALID_OPTION' })
      await expect(admin.skip(id, [1n], wrong)).rejects.toMatchObject({ code: 'INVALID_OPTION' })
    }
    expect(await admin.history(id)).toEqual([])
    broken = false
    // Number 3 waits behind number 1; number 99 is not parked; and version 1 has none at all.
    expect(await admin.retry(id, [3n, 1n, 99n], who)).toEqual([1n, 3n])
    expect(await admin.retry(id, [99n], who)).toEqual([])
    expect(await admin.retry({ ...id, version: 1 }, [1n], who)).toEqual([])
    const entry = { ...id, action: 'retry', ...who, positions: [1n, 3n], at: expect.any(Date) }
    expect(await admin.history(id)).toEqual([entry])
    expect(await admin.history({ ...id, version: 1 })).toEqual([])
    expect((await admin.parked({ projection: id })).map(({ nextAt }) => nextAt !== undefined)).toEqual([
      ...[true, true, false, true],
    ])
    await clock.advance(1000)
    await projector.runOnce()
    // What nobody asked for waits for its own time.
    expect(await positions()).toEqual([2n, 4n])
    expect(await at.rows('failing')).toMatchObject([{ order_id: 'o1', status: 'paid' }])
    expect(await admin.skip(id, [2n, 1n], { by: 'bob', note: 'a test order' })).toEqual([2n])
    expect(await positions()).toEqual([4n])
    const [skipped, retried] = await admin.history(id)
    expect([skipped, retried]).toEqual([
      { ...id, action: 'skip', by: 'bob', note: 'a test order', positions: [2n], at: expect.any(Date) },
      entry,
    ])
    const { rows } = await at.pool.query('SELECT clock_timestamp() AS now')
    expect(Math.abs(rows[0].now - retried!.at.getTime())).toBeLessThan(600_000)
    expect(skipped!.at >= retried!.at).toBe(true)
  })

  test('one that was retired runs no more, and the log may be trimmed past it', async () => {
    const admin = new ProjectionAdmin({ store: at.db, log })
    await expect(admin.retire(orders(), { by: '', note: '' })).rejects.toMatchObject({ code: 'INVALID_OPTION' })
    expect(await admin.retire(orders(), { by: 'ann', note: 'replaced' })).toBe(true)
    expect(await admin.retire(orders(), { by: 'ann', note: 'replaced' })).toBe(false)
    expect(await at.db.projections.list(log.id)).toEqual([])
    await expect(again()).rejects.toMatchObject({ code: 'RETIRED' })
    expect(await admin.history(orders())).toMatchObject([{ action: 'retire', by: 'ann', note: 'replaced' }])
  })
})

test('who has just written is remembered for 3 s', async () => {
  const clock = new FakeClock()
  const written = recentlyWritten({ clock })
  expect(await written.has('u1')).toBe(false)
  await written.mark('u1')
  await clock.advance(2999)
  expect([await written.has('u1'), await written.has('u2')]).toEqual([true, false])
  await clock.advance(1)
  expect(await written.has('u1')).toBe(false)
})

test('what is no client of Redis is refused, and no password is shown', () => {
  expect(() => recentlyWritten({ redis: 'redis://u:hunter2@h' as never })).toThrow(
    'recentlyWritten: redis is "redis://…@h"; give a client of ioredis or node-redis',
  )
})

test('Redis that cannot be asked: the main store is read, and a write is not made to fail', async () => {
  const redis = { call: () => Promise.reject(new Error('connection refused')) }
  const written = recentlyWritten({ redis })
  expect(await written.mark('u1')).toBe(false)
  expect(await written.has('u1')).toBe(true)
})
