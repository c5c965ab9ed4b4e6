import { afterEach, beforeEach, expect, test } from 'vitest'
import { Reject } from '../../src/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { created, ListLog, orders, type World, world } from './support.ts'

describeWith(['postgres'], 'lookups that fail while a projection runs', () => {
  let at: World
  let log: ListLog
  let clock: FakeClock
  beforeEach(async () => {
    at = await world()
    log = new ListLog()
    clock = new FakeClock()
  })
  afterEach(() => at.end())

  const parked = { backoff: { min: 0, max: 0, jitter: 0 } }
  const options = () => ({ clock, parked, lease: '10m' }) as const
  const ids = async () => (await at.rows()).map(({ order_id }) => order_id)
  const of = (buyerId: string) => created(`of ${buyerId}`, { buyerId })

  test('all of a batch fail: what is answered for the next batch shows that it is no outage', async () => {
    const asked: string[] = []
    const view = orders((buyer) => {
      asked.push(buyer)
      if (buyer.startsWith('bad')) throw new Error('no such user')
      return buyer
    })
    const projector = at.projector(log, [view], { ...options(), batch: 2 })
    log.append(of('bad1'), of('bad2'), of('good'))
    await expect(projector.runOnce()).rejects.toThrow('no such user')
    await eventually('the next is asked for', () => asked.includes('good'))
    await clock.advance(30_000)
    await projector.runOnce()
    expect(await ids()).toEqual(['of good'])
    expect(await at.db.projections.parked({}, {})).toHaveLength(2)
    expect(asked.filter((buyer) => buyer === 'good')).toHaveLength(1)
  })

  test.each([
    ['refused for good', new Reject('no such user')],
    ['given up', new Error('no such user')],
  ])('one was %s and fails again and again: the next that fails alone is given up all the same', async (_, error) => {
    const view = orders((buyer) => {
      if (buyer.startsWith('bad')) throw buyer === 'bad1' ? error : new Error('no such user')
      return buyer
    })
    const projector = at.projector(log, [view], options())
    const fails = () => projector.runOnce().catch(() => {})
    for (const bad of ['bad1', 'bad2', 'bad3']) {
      log.append(of(bad))
      await fails()
      await clock.advance(30_000)
      await projector.runOnce()
      // It is tried again, in vain.
      await clock.advance(1000)
      await projector.runOnce()
    }
    log.append(of('good'))
    await projector.runOnce()
    expect(await ids()).toEqual(['of good'])
    const list = await at.db.projections.parked({}, {})
    expect(list.map(({ key, attempts }) => [key, attempts > 1])).toEqual([
      ['of bad1', true],
      ['of bad2', true],
      ['of bad3', true],
    ])
  })

  test('lookups of parked events hang: all of them together, and then the log has nine times as long', async () => {
    const asked: string[] = []
    let hangs = false
    const view = orders((buyer) => {
      asked.push(buyer)
      if (!buyer.startsWith('bad')) return buyer
      if (!hangs) throw new Reject('no such user')
      return new Promise<string>(() => {})
    })
    const projector = at.projector(log, [view], options())
    const bad = ['bad1', 'bad2', 'bad3']
    log.append(...bad.map(of))
    await projector.runOnce()
    hangs = true
    log.append(of('good1'))
    asked.length = 0
    await clock.advance(1000)
    const round = projector.runOnce()
    await eventually('they are asked for, all at once', () => asked.length === bad.length)
    await clock.advance(5000)
    await round
    expect(asked).toEqual([...bad, 'good1'])
    // They are due again, and wait.
    for (const good of ['good2', 'good3']) {
      await clock.advance(20_000)
      log.append(of(good))
      await projector.runOnce()
    }
    expect(asked.slice(bad.length)).toEqual(['good1', 'good2', 'good3'])
    expect(await ids()).toHaveLength(3)
  })
})
