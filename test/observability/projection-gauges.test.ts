import { afterEach, expect, test } from 'vitest'
import { Reject } from '../../src/core/index.ts'
import { created, ListLog, orders, type World, world } from '../projection/support.ts'
import { eventually } from '../support/wait.ts'
import { scraped } from './worlds.ts'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

async function begin(): Promise<{ at: World; log: ListLog; metrics: ReturnType<typeof scraped> }> {
  const at = await world()
  const metrics = scraped()
  ends.push(
    () => at.end(),
    () => metrics.stop(),
  )
  return { at, log: new ListLog(), metrics }
}

const ONE = 'projection="order_list_view/1"'

test('a projection tells how far it is behind, what is parked, and for how long it is held back', async () => {
  const { at, log, metrics } = await begin()
  const of = async (name: string) => (await metrics.of(`waybill_projection_${name}`))[ONE]
  const view = orders((buyer) => {
    if (buyer === 'nobody') throw new Reject('there is no such buyer')
    return buyer
  })
  await at.projector(log, [view], { poll: '50ms' }).start()
  await eventually('it owns it', async () => (await of('owner')) === 1)
  expect(await metrics.of('waybill_gauges_up')).toEqual({ [ONE]: 1 })
  expect([await of('lag_events'), await of('lag_seconds'), await of('parked_count'), await of('held_seconds')]).toEqual(
    [0, 0, 0, 0],
  )
  log.append(created('o1', { buyerId: 'nobody' }))
  await eventually('it is parked', async () => (await of('parked_count')) === 1)
  log.heldBy = { pid: 4711, prepared: undefined, since: new Date(Date.now() - 90_000) }
  log.heldAt = log.next - 1n
  log.append(created('o2'))
  await eventually('it is held back', async () => (await of('held_seconds'))! >= 90)
  await eventually('it is behind', async () => (await of('lag_seconds'))! >= 90)
  await eventually('by one event', async () => (await of('lag_events')) === 1)
  // Who does it is in the log: a process is no label.
  expect(await metrics.registry.metrics()).not.toContain('4711')
})

test('of two projectors the owner tells', async () => {
  const { at, log } = await begin()
  const [first, second] = ['first', 'second'].map((name) => at.projector(log, [orders()], { name, poll: '50ms' }))
  const leads = (projector: typeof first) => [...projector!.runs.values()][0]!.gauges.leads()
  await first!.start()
  await eventually('the first owns it', () => leads(first) === true)
  await second!.start()
  await eventually('the second has looked', () => second!.projections()[0]!.state !== 'starting')
  expect(leads(second)).toBe(false)
  await first!.stop()
  await eventually('the second owns it', () => leads(second) === true)
})
