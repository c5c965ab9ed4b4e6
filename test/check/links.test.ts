import { expect, test } from 'vitest'
import { brokenIn } from '../../scripts/check/links.ts'

const GUIDE = [
  '# The guide',
  '## What `run` does, and why',
  '## Twice',
  '## Twice',
  '```sh',
  '# no heading',
  '```',
  '<a id="by-hand"></a>',
]
const guide = { path: 'docs/guide.md', text: GUIDE.join('\n') }
const paths = ['README.md', 'docs/guide.md', 'docs/pictures/way.svg', 'src/a.ts']

const judge = (text: string) => brokenIn([{ path: 'README.md', text }, guide], paths).problems

test.each([
  '[a page](docs/guide.md)',
  '[a folder](docs/pictures)',
  '![a picture](docs/pictures/way.svg)',
  '[a heading](docs/guide.md#what-run-does-and-why)',
  '[the second of two](docs/guide.md#twice-1)',
  '[by hand](docs/guide.md#by-hand)',
  '# Here\n[here](#here)',
  '[another site](https://example.org/docs/none.md#none)',
  '[a line of code](src/a.ts#L7)',
  'not a link: `[x](none.md)`',
  '```md\n[x](none.md)\n```',
  '[named][one]\n\n[one]: docs/guide.md',
])('%s is fine', (text) => {
  expect(judge(text)).toEqual([])
})

test.each([
  ['[gone](docs/none.md)', 'README.md:1  docs/none.md: docs/none.md does not exist'],
  ['\n![gone](docs/none.svg)', 'README.md:2  docs/none.svg: docs/none.svg does not exist'],
  ['<img src="docs/none.svg">', 'README.md:1  docs/none.svg: docs/none.svg does not exist'],
  ['[one]: docs/none.md', 'README.md:1  docs/none.md: docs/none.md does not exist'],
  ['[moved](docs/guide.md#none)', 'README.md:1  docs/guide.md#none: docs/guide.md has no heading #none'],
  [
    '[code](docs/guide.md#no-heading)',
    'README.md:1  docs/guide.md#no-heading: docs/guide.md has no heading #no-heading',
  ],
  ['[here](#none)', 'README.md:1  #none: README.md has no heading #none'],
  ['[thrice](docs/guide.md#twice-2)', 'README.md:1  docs/guide.md#twice-2: docs/guide.md has no heading #twice-2'],
])('%s is found', (text, problem) => {
  expect(judge(text)).toEqual([problem])
})
