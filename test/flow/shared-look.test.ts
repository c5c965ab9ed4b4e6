import { expect, test } from 'vitest'
import { SharedLook } from '../../src/flow/shared-look.ts'
import { FakeClock } from '../../src/testing/index.ts'

interface Waiter {
  readonly name: string
  readonly patience: number
}

test('one who comes during a look for the patient is looked for as soon as it needs', async () => {
  const clock = new FakeClock()
  const looks: string[][] = []
  let answer = () => {}
  const shared = new SharedLook<Waiter>({
    name: 'waiters',
    look: async (waiters) => {
      looks.push(waiters.map(({ name }) => name))
      if (looks.length === 2) await new Promise<void>((resolve) => (answer = resolve))
    },
    pause: (waiters) => Math.min(...waiters.map(({ patience }) => patience)),
    backoff: { min: 20, max: 1000 },
    clock,
  })
  const [first, patient, second] = [20, 1000, 20].map((patience, i) => ({ name: `${i}`, patience })) as Waiter[]
  await shared.add(first!)
  await shared.add(patient!)
  await clock.settle()
  shared.remove(first!)
  await clock.advance(20)
  expect(looks.at(-1)).toEqual(['1'])
  await shared.add(second!)
  answer()
  await clock.settle()
  await clock.advance(20)
  expect(looks.at(-1)).toEqual(['1', '2'])
  shared.remove(patient!)
  shared.remove(second!)
  await clock.settle()
  expect(clock.sleepers).toBe(0)
})
