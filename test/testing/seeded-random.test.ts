import { describe, expect, test } from 'vitest'
import { uuidv7 } from '../../src/core/index.ts'
import { FakeClock, seededRandom } from '../../src/testing/index.ts'

describe('seeded random', () => {
  test('the same seed repeats, another does not', () => {
    const draw = (seed: number | string) => {
      const random = seededRandom(seed)
      const bytes = new Uint8Array(8)
      random.fill(bytes)
      return [random.next(), random.next(), random.integer(1000), random.shuffle([1, 2, 3, 4, 5]), [...bytes]]
    }
    expect(draw(7)).toEqual(draw(7))
    expect(draw('night')).toEqual(draw('night'))
    expect(draw(7)).not.toEqual(draw(8))
  })

  test('the values never change between releases: a seed in a report stays good', () => {
    const random = seededRandom(1)
    expect([random.integer(1000), random.integer(1000), random.integer(1000)]).toMatchInlineSnapshot(`
      [
        554,
        147,
        410,
      ]
    `)
  })

  test('values are spread evenly over [0, 1)', () => {
    const random = seededRandom('spread')
    const buckets = new Array<number>(10).fill(0)
    for (let i = 0; i < 100_000; i++) {
      const value = random.next()
      if (!(value >= 0 && value < 1)) throw new Error(`${value} is not in [0, 1)`)
      buckets[Math.floor(value * 10)]!++
    }
    for (const count of buckets) expect(Math.abs(count - 10_000)).toBeLessThan(500)
  })

  test('fill reaches every byte value', () => {
    const bytes = new Uint8Array(20_000)
    seededRandom(3).fill(bytes)
    expect(new Set(bytes).size).toBe(256)
  })

  test('shuffle keeps what it was given, pick gives one of it', () => {
    const random = seededRandom(4)
    const given = [1, 2, 3, 4, 5, 6]
    expect(random.shuffle(given).sort()).toEqual(given)
    expect(given).toContain(random.pick(given))
    expect(() => random.pick([])).toThrow('nothing to pick from')
  })

  test('ids made with it repeat', () => {
    const ids = () => {
      const random = seededRandom(5)
      const clock = new FakeClock()
      return [uuidv7(clock, random), uuidv7(clock, random)]
    }
    expect(ids()).toEqual(ids())
    expect(new Set(ids()).size).toBe(2)
  })
})
