import { describe, expect, it } from 'vitest'
import { type Delivery, takeFrom } from '../../src/flow/index.ts'

describe('takeFrom', () => {
  const stockOf = (...sizes: number[]) => sizes.map((size) => ({ size }) as Delivery)

  it.each([
    { what: 'by count', demand: { count: 2, bytes: 100 }, given: [1, 2], left: [3, 4] },
    { what: 'by bytes', demand: { count: 9, bytes: 6 }, given: [1, 2, 3], left: [4] },
    { what: 'all', demand: { count: 9, bytes: 100 }, given: [1, 2, 3, 4], left: [] },
  ])('gives what there is room for: $what', ({ demand, given, left }) => {
    const stock = stockOf(1, 2, 3, 4)
    expect(takeFrom(stock, demand).map(({ size }) => size)).toEqual(given)
    expect(stock.map(({ size }) => size)).toEqual(left)
  })

  it('gives at least one, however large, and none where there is none', () => {
    expect(takeFrom(stockOf(50, 1), { count: 9, bytes: 10 })).toHaveLength(1)
    expect(takeFrom([], { count: 9, bytes: 10 })).toEqual([])
  })
})
