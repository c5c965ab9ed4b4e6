import fc from 'fast-check'
import { expect, test } from 'vitest'
import { Fifo } from '../../src/core/fifo.ts'

// Long enough for its front to be cut off several times.
const count = fc.integer({ min: 0, max: 3000 })
const commands = fc.array(
  fc.oneof(
    fc.record({ kind: fc.constant('push' as const), count }),
    fc.record({ kind: fc.constant('shift' as const), count }),
    fc.record({ kind: fc.constant('insert' as const), count: fc.integer({ min: 0, max: 5 }), at: fc.nat(10) }),
    fc.record({ kind: fc.constant('clear' as const) }),
  ),
  { maxLength: 12 },
)

test('it is a list that gives its first, whatever is put in and taken out between', () => {
  fc.assert(
    fc.property(commands, (all) => {
      const fifo = new Fifo<number>()
      const list: number[] = []
      let next = 1
      for (const command of all) {
        if (command.kind === 'push') {
          for (let i = 0; i < command.count; i++) {
            fifo.push(next)
            list.push(next++)
          }
        } else if (command.kind === 'shift') {
          const taken = Array.from({ length: command.count }, () => fifo.shift())
          const expected = list.splice(0, command.count)
          expect(taken).toEqual([...expected, ...new Array(command.count - expected.length).fill(undefined)])
        } else if (command.kind === 'insert') {
          const items = Array.from({ length: command.count }, () => next++)
          fifo.insert(command.at, items)
          list.splice(command.at, 0, ...items)
        } else expect(fifo.clear()).toEqual(list.splice(0))
        expect([fifo.size, fifo.peek()]).toEqual([list.length, list[0]])
        expect([...fifo]).toEqual(list)
      }
    }),
    { numRuns: 60 },
  )
})
