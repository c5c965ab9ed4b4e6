import { expect, it } from 'vitest'
import { Unavailable } from '../../src/core/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { flowOf, type Held, record, Store, stop } from './support.ts'

it('the pause that is told after a failed open is the one that follows, also where the source needs a longer one', async () => {
  const clock = new FakeClock()
  const telemetry = record()
  const store = new Store(clock).add('a')
  const opens: number[] = []
  store.before.open = () => {
    opens.push(clock.monotonic())
    if (opens.length === 1) throw new Unavailable('away', { after: 5000 })
  }
  const flow = flowOf(clock, store, { each: async () => {} })
  await flow.start()
  await clock.until(() => store.in('done').length === 1)
  expect(telemetry.of('flow.open_failed').map(({ retryIn }) => retryIn)).toEqual([5000])
  expect(opens[1]! - opens[0]!).toBe(5000)
  await stop(clock, flow)
})

it('the same while the destination is away, and who was charged alone is told with tenant, topic and attempt', async () => {
  const clock = new FakeClock()
  const telemetry = record()
  const store = new Store(clock).add('poison').addMany(3)
  const tries: number[] = []
  const each = async ({ message }: Held) => {
    if (message.id !== 'poison') return
    tries.push(clock.monotonic())
    throw new Unavailable('away', { after: 5000 })
  }
  const flow = flowOf(clock, store, { each }, { concurrency: 1, retry: { attempts: 2 } })
  await flow.start()
  await clock.until(() => store.in('dead').length === 1)
  const paused = telemetry.of('flow.paused')
  expect(paused.length).toBeGreaterThan(0)
  for (const { retryIn } of paused) expect(retryIn).toBeGreaterThanOrEqual(5000)
  for (const [i, at] of tries.entries()) if (i > 0) expect(at - tries[i - 1]!).toBeGreaterThanOrEqual(5000)
  expect(telemetry.of('message.suspected')[0]).toMatchObject({ id: 'poison', attempt: 1, topic: 'thing.happened' })
  expect(telemetry.of('message.dead')[0]).toMatchObject({ id: 'poison', attempt: 2, topic: 'thing.happened' })
  await stop(clock, flow)
})
