import fc from 'fast-check'
import { expect, test } from 'vitest'
import { LazyHeap } from '../../src/memory/heap.ts'

interface Item {
  readonly rank: number
  counts: boolean
}

const operation = fc.oneof(
  { arbitrary: fc.record({ push: fc.nat(50) }), weight: 3 },
  { arbitrary: fc.constant('pop' as const), weight: 2 },
  { arbitrary: fc.record({ forget: fc.nat(200) }), weight: 1 },
)

test('gives the smallest that counts, whatever was pushed and forgotten', () => {
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 300, size: 'max' }), (operations) => {
      const heap = new LazyHeap<Item>(
        (item) => item.rank,
        (item) => item.counts,
      )
      const model: Item[] = []
      for (const one of operations) {
        if (one === 'pop') {
          const smallest = Math.min(...model.map(({ rank }) => rank))
          expect(heap.peek()?.rank ?? Number.POSITIVE_INFINITY).toBe(smallest)
          const popped = heap.pop()
          if (popped !== undefined) model.splice(model.indexOf(popped), 1)
        } else if ('push' in one) {
          const item = { rank: one.push, counts: true }
          heap.push(item)
          model.push(item)
        } else if (model.length > 0) {
          const [gone] = model.splice(one.forget % model.length, 1)
          gone!.counts = false
        }
      }
      const rest: number[] = []
      for (let item = heap.pop(); item !== undefined; item = heap.pop()) rest.push(item.rank)
      expect(rest).toEqual(model.map(({ rank }) => rank).sort((a, b) => a - b))
    }),
  )
})
