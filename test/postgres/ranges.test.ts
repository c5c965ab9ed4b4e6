import { describe, expect, test } from 'vitest'
import { Ranges } from '../../src/postgres/ranges.ts'
import { seededRandom } from '../../src/testing/index.ts'

describe('numbers as ranges', () => {
  test('neighbours join, and part again', () => {
    const ranges = new Ranges()
    expect(String(ranges)).toBe('{}')
    expect(ranges.lowest).toBe(Number.POSITIVE_INFINITY)
    expect(ranges.longest).toBeUndefined()
    for (const number of [3, 1, 2, 9, 8, 5, 5]) ranges.add(number)
    expect(String(ranges)).toBe('{[1,3],[5,5],[8,9]}')
    expect(ranges.lowest).toBe(1)
    expect(ranges.longest).toEqual({ from: 1, to: 3 })
    const copy = new Ranges(ranges)
    for (const number of [2, 5, 9, 7, 100]) ranges.delete(number)
    expect(String(ranges)).toBe('{[1,1],[3,3],[8,8]}')
    expect(String(copy)).toBe('{[1,3],[5,5],[8,9]}')
  })

  test('hold what a set would hold', () => {
    const random = seededRandom('ranges')
    const ranges = new Ranges()
    const set = new Set<number>()
    for (let i = 0; i < 4000; i++) {
      const number = random.integer(60)
      const add = random.integer(2) === 0
      ranges[add ? 'add' : 'delete'](number)
      set[add ? 'add' : 'delete'](number)
      expect(ranges.has(number)).toBe(add)
      if (i % 100 > 0) continue
      const text = String(ranges).replace('{', '[').replace('}', ']')
      const held = (JSON.parse(text) as [number, number][]).flatMap(([from, to]) =>
        Array.from({ length: to - from + 1 }, (_, at) => from + at),
      )
      expect(held).toEqual([...set].sort((a, b) => a - b))
    }
  })
})
