import { describe, expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { type Json, type Saga, saga } from '../../src/saga/index.ts'
import { stored } from '../../src/saga/json.ts'

interface Tx {
  query(text: string): Promise<unknown>
}

const Order = z.object({ id: z.string(), total: z.number(), at: z.date() })
const base = saga('order', { version: 1, input: Order, aggregate: (order) => order.id })

describe('types', () => {
  test('results of earlier steps are typed in later ones, as they come back from JSON', () => {
    const whole = base
      .step('reserve', async (c) => {
        expectTypeOf(c.input).toEqualTypeOf<{ id: string; total: number; at: string }>()
        expectTypeOf(c.key).toEqualTypeOf<string>()
        expectTypeOf(c.signal).toEqualTypeOf<AbortSignal>()
        return { until: new Date(0), count: 3 }
      })
      .step(
        'charge',
        (c) => {
          expectTypeOf(c.results.reserve).toEqualTypeOf<{ until: string; count: number }>()
          // @ts-expect-error later steps have no result yet
          c.results.charge
          return [c.results.reserve.count] as const
        },
        {
          undo: (c) => {
            expectTypeOf(c.output).toEqualTypeOf<readonly [number] | undefined>()
            expectTypeOf(c.undoKey).toEqualTypeOf<string>()
          },
          check: (c) => c.results.reserve.count,
        },
      )
      .sleep('pause', '1h')
    type Start = typeof whole extends Saga<infer S, infer _I, infer _R> ? S : never
    expectTypeOf<Start>().toEqualTypeOf<z.input<typeof Order>>()
    type Results = typeof whole extends Saga<infer _S, infer _I, infer R> ? R : never
    expectTypeOf<Results>().toEqualTypeOf<{
      reserve: { until: string; count: number }
      charge: readonly [number]
      pause: undefined
    }>()
  })

  test('the type of the transaction is inferred, and one for the whole saga', () => {
    const one = base.transaction('confirm', (c, tx: Tx) => tx.query(c.input.id), {
      undo: (c, tx) => {
        expectTypeOf(tx).toEqualTypeOf<Tx>()
        return tx.query(c.undoKey)
      },
    })
    one.onEnd((c, tx) => {
      expectTypeOf(tx).toEqualTypeOf<Tx>()
      expectTypeOf(c.status).toEqualTypeOf<'completed' | 'compensated' | 'failed'>()
    })
    // @ts-expect-error a transaction of another library
    one.transaction('other', (_c, tx: { execute(): void }) => tx.execute())
  })

  test('a repeated name is a type error, and an error', () => {
    const one = base.step('reserve', () => 1)
    // @ts-expect-error the name is taken
    expect(() => one.step('reserve', () => 2)).toThrow(/already/)
    // @ts-expect-error the name is taken
    expect(() => one.step('reserve', () => 2, { undo() {} })).toThrow(/already/)
  })

  test('Json says what JSON makes of a value', () => {
    expectTypeOf<Json<Date>>().toEqualTypeOf<string>()
    expectTypeOf<Json<{ a: Date; f(): void; u: undefined; o?: number }>>().toEqualTypeOf<{ a: string; o?: number }>()
    expectTypeOf<Json<(Date | null)[]>>().toEqualTypeOf<(string | null)[]>()
    expectTypeOf<Json<Map<string, number>>>().toEqualTypeOf<Record<string, never>>()
    expectTypeOf<Json<bigint>>().toEqualTypeOf<never>()
    expectTypeOf<Json<void>>().toEqualTypeOf<undefined>()
    expectTypeOf<Json<unknown>>().toEqualTypeOf<unknown>()
  })
})

describe('definition', () => {
  test('its name in the store has its version and a hash of its steps', () => {
    const one = base.step('a', () => 1)
    expect(one.definition).toMatch(/^order@1#[0-9a-f]{12}$/)
    expect(base.step('a', () => 2).definition).toBe(one.definition)
    const others = [
      base.step('b', () => 1),
      base.step('a', () => 1, { undo() {} }),
      base.step('a', () => 1, { unknown: 'hold' }),
      base.transaction('a', () => 1),
      base.pointOfNoReturn().step('a', () => 1),
      one.sleep('z', '1s'),
      one.onEnd(() => {}),
    ]
    expect(new Set([one, ...others].map(({ definition }) => definition)).size).toBe(others.length + 1)
  })

  test('a definition never changes', () => {
    const one = base.step('a', () => 1)
    one.step('b', () => 1)
    expect(one.steps).toHaveLength(1)
    expect(base.steps).toHaveLength(0)
  })

  test.each([
    ['a name that is none', () => saga('no name', { version: 1 }), /is not a name/],
    ['no version', () => saga('order', {} as never), /version/],
    ['an unknown option', () => saga('order', { version: 1, inputs: Order } as never), /did you mean "input"/],
    ['a step without a function', () => base.step('a', undefined as never), /is not a function/],
    ['a step without a name', () => base.step('', () => 1), /give a name of 1 to/],
    ['the name of the end', () => base.step('onEnd' as string, () => 1), /reserved for the end/],
    ['check without a check', () => base.step('a', () => 1, { unknown: 'check' }), /needs the function check/],
    ['an unknown policy', () => base.step('a', () => 1, { unknown: 'redo' as never }), /not allowed/],
    ['a time-out that is none', () => base.step('a', () => 1, { timeout: '5 s' as never }), /not a duration/],
    [
      'undo behind the point of no return',
      () => base.pointOfNoReturn().step('a', () => 1, { undo() {} }),
      /leave undo out, or move it before/,
    ],
    ['two points of no return', () => base.pointOfNoReturn().pointOfNoReturn(), /already/],
    ['an aggregate that is no text', () => base.aggregateOf({ id: 5 }), /must return text/],
  ])('%s is refused', (_, make, says) => {
    expect(make).toThrow(says)
  })
})

describe('what is stored', () => {
  const most = 1000
  test('comes back as JSON has it', () => {
    expect(stored({ at: new Date(0), gone: undefined }, 'it', most).value).toEqual({ at: '1970-01-01T00:00:00.000Z' })
    expect(stored(undefined, 'it', most)).toEqual({ text: undefined, value: undefined })
    expect(stored('a\\u0000 that is text, 😀', 'it', most).value).toBe('a\\u0000 that is text, 😀')
  })

  test('what JSON or a store cannot hold is refused, without showing it', () => {
    const circle: { secret: string; self?: unknown } = { secret: 'word' }
    circle.self = circle
    for (const value of [1n, circle, () => 1, Symbol('s'), 'a\0b', '\ud800', { k: ['\udc00'] }]) {
      expect(() => stored(value, 'the result of charge', most)).toThrow(
        expect.objectContaining({ code: 'NOT_SERIALISABLE' }),
      )
    }
    expect(() => stored('x'.repeat(5_000_000), 'it', most)).toThrow(expect.objectContaining({ code: 'TOO_LARGE' }))
  })
})
