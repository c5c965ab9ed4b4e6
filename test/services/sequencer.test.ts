import { existsSync } from 'node:fs'
import { expect, test } from 'vitest'
import LongestFirst, { LONGEST } from '../../scripts/testing/sequencer.ts'

const root = new URL('../..', import.meta.url)

test('the longest test files are there', () => {
  expect(LONGEST.filter((name) => !existsSync(new URL(name, root)))).toEqual([])
})

test('they come first, in the order of the list, and the others as they would', async () => {
  const names = ['test/core/b.test.ts', LONGEST[2]!, 'test/core/a.test.ts', LONGEST[0]!]
  const config = { root: root.pathname, sequence: { groupOrder: 0 } }
  const cache = { getFileTestResults: () => undefined, getFileStats: () => ({ size: 1 }) }
  const files = names.map((name) => ({ moduleId: new URL(name, root).pathname, project: { name: '', config } }))
  const sorted = await new LongestFirst({ config, cache } as never).sort(files as never)
  expect(sorted.map(({ moduleId }) => moduleId.slice(root.pathname.length))).toEqual([
    LONGEST[0],
    LONGEST[2],
    'test/core/b.test.ts',
    'test/core/a.test.ts',
  ])
})
