import { expect, test } from 'vitest'
import { crashPoints, runScript, runUntilCrash } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { changed, created, itemAdded, renamed } from '../shop.ts'
import { LEASE, script, shops } from './support.ts'

/** Longer than its lease; the real thing is two minutes. */
const SUSPENDED = scale({ test: 0, full: 3000, torture: 120_000 })
const LONG = { timeout: scale({ test: 120_000, full: 300_000, torture: 3_600_000 }) }

/** Of applying a batch, and of parking and trying again. */
const POINTS = crashPoints([
  'before-open',
  'after-open',
  'after-view',
  'before-advance',
  'after-advance',
  'after-write',
  'before-park',
  'after-park',
  'before-commit',
  'after-commit',
  'before-report',
  'before-due',
  'before-hold',
  'after-hold',
  'before-unpark',
  'after-unpark',
  'before-failedAgain',
  'after-failedAgain',
])
/** Reached only where what is parked can be applied. */
const MENDED = ['before-unpark', 'after-unpark']
const QUICK = ['after-advance', 'after-commit', 'after-unpark']

describeWith(['postgres'], 'projectors that are killed or suspended', () => {
  const { shop } = shops(LONG.timeout)

  const EXPECTED = [
    { order_id: 'a', buyer_name: 'Ann', status: 'paid', amount: 13, item_count: 3 },
    { order_id: 'b', buyer_name: 'name of nobody', status: 'sent', amount: 12, item_count: 2 },
    { order_id: 'c', buyer_name: 'Ann', status: 'new', amount: 10, item_count: 0 },
  ]
  const HISTORY = () => [
    ...[created('a'), created('b', { buyerId: 'nobody' }), itemAdded('a', 1), itemAdded('b', 1), created('c')],
    ...[itemAdded('a', 1), itemAdded('a', 1), changed('a', 'paid'), itemAdded('b', 1), renamed('b1', 'Ann')],
    changed('b', 'sent'),
  ]

  test.each(scale<readonly string[]>({ test: QUICK, full: POINTS, torture: POINTS }))(
    'killed at %s: whoever comes then applies each event once',
    LONG,
    async (at) => {
      const { write, job, recover, view } = await shop()
      await write(...HISTORY())
      const env = job({ mended: MENDED.includes(at) })
      if (MENDED.includes(at)) {
        const parking = runScript({ script, env: job({ mended: false }), timeout: 60_000 })
        await parking.line('ready')
        await eventually('it is parked', async () => (await view().catch(() => [])).length === 2)
        parking.kill('SIGKILL')
        await parking.finished.catch(() => {})
      }
      const result = await runUntilCrash({ script, env, at, timeout: 60_000 })
      expect(result.crashed).toBe(true)
      await recover()
      expect(await view()).toEqual(EXPECTED)
    },
  )

  test.each(
    scale({
      test: ['after-advance'],
      full: ['after-advance', 'before-advance'],
      torture: ['after-advance', 'before-advance'],
    }),
  )('suspended at %s, and woken when another has taken over: its writes change nothing', LONG, async (suspendAt) => {
    const { write, child, recover, view, db } = await shop()
    const zombie = child({ suspendAt, batch: 2, lease: LEASE, idle: LEASE * (2 / 3) })
    await write(...HISTORY())
    await zombie.line('suspended', 60_000)
    const began = performance.now()
    await recover()
    expect(await view()).toEqual(EXPECTED)
    await write(itemAdded('a', 7))
    await eventually('it is applied', async () => (await view())[0].amount === 20)
    await eventually('it slept for long', () => performance.now() - began > SUSPENDED, { limit: LONG.timeout })
    zombie.resume()
    await eventually('it lives', async () => {
      const members = await db.leadership('projection/order_list_view/1').terms()
      return members.length === 1
    })
    await write(itemAdded('a', 1))
    await eventually('it is applied', async () => (await view())[0].amount === 21)
    expect((await view()).slice(1)).toEqual(EXPECTED.slice(1))
  })
})
