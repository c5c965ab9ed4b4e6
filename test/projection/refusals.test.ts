import { afterEach, beforeEach, expect, test } from 'vitest'
import { ProjectionAdmin, recentlyWritten } from '../../src/projection/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { created, ListLog, orders, type World, world } from './support.ts'

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

test('Redis that cannot be asked: the main store is read, and a write is not made to fail', async () => {
  const redis = { call: () => Promise.reject(new Error('connection refused')) }
  const written = recentlyWritten({ redis })
  expect(await written.mark('u1')).toBe(false)
  expect(await written.has('u1')).toBe(true)
})
