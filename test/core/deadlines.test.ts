import { expect, test } from 'vitest'
import { Bag, Deadlines } from '../../src/core/deadlines.ts'
import { FakeClock } from '../../src/testing/index.ts'

test('each is told at its own time, and none that was met', async () => {
  const clock = new FakeClock(0)
  const deadlines = new Deadlines(clock)
  const late: string[] = []
  const add = (name: string, ms: number) => deadlines.add(ms, () => late.push(name))
  add('b', 200)
  const met = add('met', 150)
  add('a', 100)
  await clock.advance(99)
  expect(late).toEqual([])
  deadlines.delete(met)
  await clock.advance(1)
  expect(late).toEqual(['a'])
  add('c', 50)
  await clock.advance(50)
  expect(late).toEqual(['a', 'c'])
  await clock.advance(50)
  expect(late).toEqual(['a', 'c', 'b'])
})

test('one that is late may set the next', async () => {
  const clock = new FakeClock(0)
  const deadlines = new Deadlines(clock)
  let notified = 0
  const again = (): void => {
    notified++
    deadlines.add(10, again)
  }
  deadlines.add(10, again)
  for (let i = 0; i < 5; i++) await clock.advance(10)
  expect(notified).toBe(5)
})

test('a bag holds what was not taken out, in whatever order things go', () => {
  const bag = new Bag<string>()
  const held = ['a', 'b', 'c', 'd', 'e'].map((name) => bag.add(name))
  const rest = () =>
    bag
      .all()
      .map(({ value }) => value)
      .sort()
  bag.delete(held[1]!)
  expect(rest()).toEqual(['a', 'c', 'd', 'e'])
  // Another stands in its place now, and stays when it is taken out again.
  bag.delete(held[1]!)
  expect(rest()).toEqual(['a', 'c', 'd', 'e'])
  bag.delete(held[4]!)
  bag.delete(held[0]!)
  expect(rest()).toEqual(['c', 'd'])
  bag.delete(held[2]!)
  bag.delete(held[3]!)
  expect(bag.size).toBe(0)
})
