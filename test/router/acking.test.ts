import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { acking, sharedAcking } from '../../src/router/index.ts'

const CALLBACKS = {
  returns: () => undefined,
  throws: () => {
    throw new Error('callback')
  },
  resolves: () => Promise.resolve(),
  rejects: () => Promise.reject(new Error('callback')),
  // As query builders do: it can be awaited, and is no Promise.
  rejectsThenable: () => ({
    // biome-ignore lint/suspicious/noThenProperty: a thenable is the point
    then: (_: unknown, fail?: (error: unknown) => void) =>
      void Promise.resolve().then(() => fail?.(new Error('callback'))),
  }),
}
type Behaviour = keyof typeof CALLBACKS
const behaviour = fc.constantFrom(...(Object.keys(CALLBACKS) as Behaviour[]))
const call = fc.record({ how: fc.constantFrom('ack', 'nack'), later: fc.boolean() })

const fails = (name: Behaviour) => name === 'throws' || name === 'rejects' || name === 'rejectsThenable'
const allPromises = async () => {
  for (let i = 0; i < 10; i++) await Promise.resolve()
}

describe('acking', () => {
  test('settles once, whatever the order of calls and whatever the callbacks do', async () => {
    const property = fc.asyncProperty(
      fc.array(call),
      behaviour,
      behaviour,
      fc.boolean(),
      async (calls, onAck, onNack, again) => {
        const made: string[] = []
        const failures: unknown[] = []
        const answers: boolean[] = []
        // A callback may come back to the acking it belongs to.
        const reenter = () => again && answers.push(one.ack(), one.nack(new Error('again')))
        const one = acking(
          () => {
            made.push('ack')
            reenter()
            return CALLBACKS[onAck]()
          },
          () => {
            made.push('nack')
            reenter()
            return CALLBACKS[onNack]()
          },
          (error) => failures.push(error),
        )
        const perform = (how: string) => answers.push(how === 'ack' ? one.ack() : one.nack(new Error('handler')))
        const [now, later] = [calls.filter((each) => !each.later), calls.filter((each) => each.later)]
        for (const { how } of now) perform(how)
        await Promise.all(later.map(({ how }) => Promise.resolve().then(() => perform(how))))
        await allPromises()

        const first = [...now, ...later][0]?.how
        expect(made).toEqual(first === undefined ? [] : [first])
        expect(one.settled).toBe(first)
        expect(answers.filter(Boolean)).toHaveLength(first === undefined ? 0 : 1)
        const failing = first !== undefined && fails(first === 'ack' ? onAck : onNack)
        expect(failures).toHaveLength(failing ? 1 : 0)
      },
    )
    await fc.assert(property, { numRuns: 500 })
  })

  test('the nack carries its error', () => {
    const errors: unknown[] = []
    const error = new Error('handler')
    const one = acking(
      () => undefined,
      (given) => errors.push(given),
      () => undefined,
    )
    expect(one.nack(error)).toBe(true)
    expect(one.ack()).toBe(false)
    expect(errors).toEqual([error])
  })

  test('a callback that fails is settled nevertheless, and its failure is handed on', async () => {
    const failures: unknown[] = []
    const broken = new Error('connection lost')
    const one = acking(
      () => Promise.reject(broken),
      () => undefined,
      (error) => failures.push(error),
    )
    expect(one.ack()).toBe(true)
    expect(one.nack(new Error('late'))).toBe(false)
    await allPromises()
    expect(failures).toEqual([broken])
    expect(one.settled).toBe('ack')
  })
})

describe('shared acking', () => {
  const whole = () => {
    const made: string[] = []
    const acks = acking(
      () => made.push('ack'),
      (error) => made.push(`nack ${error}`),
      (error) => made.push(`failed ${error}`),
    )
    return { made, acks }
  }

  test('acks after every part has, and the first nack settles at once', () => {
    const step = fc.record({ part: fc.nat(7), how: fc.constantFrom('ack', 'nack') })
    const property = fc.property(
      fc.integer({ min: 1, max: 8 }),
      fc.array(step, { maxLength: 40, size: 'max' }),
      (count, steps) => {
        const { made, acks } = whole()
        const parts = sharedAcking(acks, count)
        const settled = new Map<number, string>()
        let expected: string | undefined
        for (const { part, how } of steps.map((each) => ({ ...each, part: each.part % count }))) {
          const fresh = !settled.has(part)
          const answer = how === 'ack' ? parts[part]!.ack() : parts[part]!.nack(part)
          expect(answer).toBe(fresh)
          if (fresh) settled.set(part, how)
          if (fresh && how === 'nack') expected ??= `nack ${part}`
          if (settled.size === count && [...settled.values()].every((each) => each === 'ack')) expected ??= 'ack'
          expect(made).toEqual(expected === undefined ? [] : [expected])
        }
      },
    )
    fc.assert(property, { numRuns: 1000 })
  })

  test('of no parts acks now', () => {
    const { made, acks } = whole()
    expect(sharedAcking(acks, 0)).toEqual([])
    expect(made).toEqual(['ack'])
  })

  test.each([-1, 1.5, Number.NaN])('of %d parts is refused: it would never settle', (count) => {
    expect(() => sharedAcking(whole().acks, count)).toThrow('sharedAcking: count')
  })
})
