import { expect, test } from 'vitest'
import { lockfileProblems } from '../../scripts/check/lockfile.ts'
import { wordProblems } from '../../scripts/check/words.ts'

// Written in two pieces, so that this file does not hold what it looks for.
const home = '/ho' + 'me/'
const work = '/wo' + 'rk/'

test.each([`${home}ada/waybill`, `cd ${work}main`, `"${home}ada"`, `(${home}ada)`, `PATH=${home}ada/bin`])(
  'a path of one machine is found: %s',
  (line) => {
    expect(wordProblems({ path: 'docs/x.md', text: `first\n${line}\n` })).toEqual([
      expect.stringMatching(/^docs\/x\.md:2 /),
    ])
  },
)

test.each([
  `https://example.com${home}page`,
  `../..${work}queue.ts`,
  `src${work}queue.ts`,
  `\${folder}${home}x`,
  `~${work}x`,
  '/homework/x',
  '/home',
])('part of a longer path or of an address is not one: %s', (line) => {
  expect(wordProblems({ path: 'docs/x.md', text: line })).toEqual([])
})

test('a lockfile names versions and hashes, no addresses', () => {
  const lock = (entry: object) => ({
    path: 'package-lock.json',
    text: JSON.stringify({ packages: { '': { name: 'waybill' }, 'node_modules/pg': entry } }),
  })
  expect(lockfileProblems(lock({ version: '1.0.0', integrity: 'sha512-x' }))).toEqual([])
  expect(lockfileProblems(lock({ resolved: '../pg', link: true }))).toEqual([])
  expect(lockfileProblems(lock({ integrity: 'sha512-x', resolved: 'https://mirror.example/pg.tgz' }))).toEqual([
    expect.stringContaining('node_modules/pg has a download address'),
  ])
  expect(lockfileProblems(lock({ version: '1.0.0' }))).toEqual([
    expect.stringContaining('node_modules/pg has no integrity hash'),
  ])
  expect(lockfileProblems(lock({ integrity: 'sha512-x', optionalDependencies: { 'pg-arm': '1.0.0' } }))).toEqual([
    expect.stringContaining('node_modules/pg needs pg-arm, which is not locked'),
  ])
  expect(lockfileProblems(lock({ integrity: 'sha512-x', optionalDependencies: { pg: '1.0.0' } }))).toEqual([])
})
