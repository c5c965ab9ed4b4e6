import { afterEach, describe, expect, test } from 'vitest'
import { saga } from '../../src/saga/index.ts'
import { deferred, inMemory } from './support.ts'

const HOUR = 3_600_000
const log: string[] = []
let world = inMemory()
afterEach(async () => {
  await world.end()
  world = inMemory()
  log.splice(0)
})

/** The clock that decides is the store's: here one and the same, and somebody sets it. */
describe('a clock that is set to another time', () => {
  test('back an hour in the middle of a step: the saga goes on at once, each step once', async () => {
    const work = deferred<string>()
    const one = saga('back', { version: 1 })
      .step('a', () => {
        log.push('a')
        return work.promise
      })
      .step('b', () => void log.push('b'))
    const runner = await world.runner([one]).start()
    const own = runner.client(one).run({})
    await world.clock.settle()
    world.clock.jump(-HOUR)
    work.resolve('done')
    expect(await world.soon(own, 10_000)).toMatchObject({ a: 'done' })
    expect(log).toEqual(['a', 'b'])
    const [ended] = world.telemetry.of('saga.ended')
    expect(ended!.took).toBe(0)
  })

  test('back an hour while it waits: due later by that hour, not lost, and each step once', async () => {
    const one = saga('waits', { version: 1 })
      .step('a', () => void log.push('a'))
      .sleep('pause', '10s')
      .step('b', () => void log.push('b'))
    const runner = await world.runner([one]).start()
    const own = runner.client(one).run({}, { timeout: '3h' })
    own.catch(() => {})
    await world.clock.advance(1000)
    world.clock.jump(-HOUR)
    await world.clock.advance(HOUR / 2)
    expect(log).toEqual(['a'])
    await world.soon(own)
    expect(log).toEqual(['a', 'b'])
  })

  test('an hour ahead: what others have looks silent and is taken over, and the fence keeps their writes out', async () => {
    const work = deferred<string>()
    let calls = 0
    const one = saga('ahead', { version: 1 })
      .step('a', () => (++calls === 1 ? work.promise : 'second'), { timeout: '2h' })
      .step('b', () => void log.push('b'))
    const first = world.runner([one])
    const id = await world.db.withTransaction((tx) => first.client(one as never).start(tx, {}))
    const round = first.runOnce()
    await world.clock.settle()
    world.clock.jump(HOUR)
    expect(await world.runner([one]).runOnce()).toMatchObject({ taken: 1 })
    const before = await world.load(id)
    expect(before).toMatchObject({ status: 'completed', steps: [{ output: 'second' }, {}] })
    work.resolve('first')
    await world.soon(round)
    expect(await world.load(id)).toEqual(before)
    expect(log).toEqual(['b'])
    expect(world.telemetry.of('saga.fenced')).toMatchObject([{ id }])
  })
})
