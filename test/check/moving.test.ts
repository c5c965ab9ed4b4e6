import { expect, test } from 'vitest'
import { goneIn } from '../../scripts/check/gone.ts'
import { apart, WALK } from '../../scripts/check/walk.ts'
import { plan } from '../../scripts/moving/plan.ts'

const files = [
  { path: 'src/flow/pump.ts', text: "import { Hand } from './hand.ts'\nimport { x } from '../core/x.ts'\n" },
  { path: 'src/flow/hand.ts', text: "// Driven by pump.ts.\nimport type { Pump } from './pump.ts'\n" },
  { path: 'src/core/x.ts', text: 'export const x = 1\n' },
  { path: 'test/flow/pump.test.ts', text: "import '../../src/flow/pump.ts'\nimport './child.ts'\n" },
  { path: 'test/flow/child.ts', text: "new URL('../../src/flow/pump.ts', import.meta.url)\n" },
  { path: 'test/mutations/flow.ts', text: "{ file: 'src/flow/pump.ts', test: 'test/flow/pump.test.ts' }\n" },
  { path: 'scripts/readiness-map.ts', text: "const pump = by('flow/pump')\n" },
  {
    path: 'docs/internals.md',
    text: 'See [`pump.ts`](../src/flow/pump.ts#top), and pump.ts again; not lamp-pump.ts.\n',
  },
]

const moved = () => {
  const { moves, changed, problems } = plan(files, new Map([['src/flow/pump.ts', 'src/run/dispatcher.ts']]))
  expect(problems).toEqual([])
  return { moves, text: (path: string) => changed.find((file) => file.path === path)?.text }
}

test('a file moves with its imports, and whoever imports it is told', () => {
  const { text } = moved()
  expect(text('src/run/dispatcher.ts')).toBe(
    "import { Hand } from '../flow/hand.ts'\nimport { x } from '../core/x.ts'\n",
  )
  expect(text('src/flow/hand.ts')).toBe(
    "// Driven by dispatcher.ts.\nimport type { Pump } from '../run/dispatcher.ts'\n",
  )
  expect(text('test/flow/child.ts')).toBe("new URL('../../src/run/dispatcher.ts', import.meta.url)\n")
  expect(text('src/core/x.ts')).toBeUndefined()
})

test('its test moves too, with what the test imports', () => {
  const { moves, text } = moved()
  expect(moves.get('test/flow/pump.test.ts')).toBe('test/run/dispatcher.test.ts')
  expect(text('test/run/dispatcher.test.ts')).toBe("import '../../src/run/dispatcher.ts'\nimport '../flow/child.ts'\n")
})

test('mutations, the readiness map and the docs follow', () => {
  const { text } = moved()
  expect(text('test/mutations/flow.ts')).toBe(
    "{ file: 'src/run/dispatcher.ts', test: 'test/run/dispatcher.test.ts' }\n",
  )
  expect(text('scripts/readiness-map.ts')).toBe("const pump = by('run/dispatcher')\n")
  expect(text('docs/internals.md')).toBe(
    'See [`dispatcher.ts`](../src/run/dispatcher.ts#top), and dispatcher.ts again; not lamp-pump.ts.\n',
  )
})

test.each([
  ['src/flow/gone.ts', 'src/flow/new.ts', 'src/flow/gone.ts does not exist'],
  ['src/flow/pump.ts', 'src/flow/hand.ts', 'src/flow/hand.ts exists already'],
])('%s to %s: %s', (from, to, problem) => {
  expect(plan(files, new Map([[from, to]])).problems).toEqual([problem])
})

test('two files may change places', () => {
  const swap = new Map([
    ['src/flow/pump.ts', 'src/flow/hand.ts'],
    ['src/flow/hand.ts', 'src/flow/pump.ts'],
  ])
  expect(plan(files, swap).problems).toEqual([])
})

test('names of files that are gone are found in comments, SQL, Lua and docs', () => {
  const paths = ['src/flow/flow.ts', 'docs/guide.md', 'src/postgres/sql/look.sql']
  const found = (path: string, text: string) => goneIn({ path, text }, paths)
  // Written in two pieces, so that this file does not hold what it looks for.
  const lost = 'lo' + 'st.ts'
  expect(found('src/a.ts', `import './gone.ts' // see ${lost}, flow.ts and flow/flow.ts`)).toEqual([
    `src/a.ts:1  ${lost} does not exist`,
  ])
  expect(found('src/a.sql', '-- as in look.sql\n-- and in seek.sql')).toEqual(['src/a.sql:2  seek.sql does not exist'])
  expect(found('docs/b.md', `as flow.ts does, and ${lost}`)).toEqual([`docs/b.md:1  ${lost} does not exist`])
})

test('a file on the way that nothing on the way imports is told', () => {
  const [first, second] = ['src/flow/flow.ts', 'src/flow/window.ts']
  expect(WALK).toEqual(expect.arrayContaining([first, second]))
  const text = `import { Window } from './window.ts'\n`
  expect(
    apart([
      { path: first, text },
      { path: second, text: '' },
    ]),
  ).toEqual([`${first} is on the way, but no other file on it imports it`])
})
