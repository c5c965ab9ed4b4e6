import { describe, expect, it } from 'vitest'
import { goneIn } from '../../scripts/check/gone.ts'

const PATHS = ['src/flow/flow.ts', 'src/drivers/sql/pg.ts', 'src/postgres/sql/scan-ready.sql', 'docs/internals.md']
// Not in the text itself: this file is looked through as well.
const SLASHES = '//'
const gone = (path: string, text: string) => goneIn({ path, text }, PATHS)

describe('a file that is gone is found', () => {
  it.each([
    ['in a comment', 'src/flow/flow.ts', '// see pump.ts', 'src/flow/flow.ts:1  pump.ts does not exist'],
    ['behind code', 'src/flow/flow.ts', `run() ${SLASHES} as in pump.ts`, 'src/flow/flow.ts:1  pump.ts does not exist'],
    ['in a header of SQL', 'src/a.sql', '--\n-- after scan-held.sql', 'src/a.sql:2  scan-held.sql does not exist'],
    ['in a header of Lua', 'src/a.lua', '-- after claim.lua', 'src/a.lua:1  claim.lua does not exist'],
    ['on a page', 'docs/internals.md', 'Read `flow/pump.ts`.', 'docs/internals.md:1  flow/pump.ts does not exist'],
  ])('%s', (_, path, text, problem) => {
    expect(gone(path, text)).toEqual([problem])
  })
})

describe('nothing is said of', () => {
  it.each([
    ['a file that is there, by its name', '// see pg.ts and scan-ready.sql'],
    ['by the end of its path', '// see sql/pg.ts'],
    ['by its path from here', '// see ../drivers/sql/pg.ts'],
    ['code, which the compiler reads', "import { Pump } from './pump.ts'"],
  ])('%s', (_, text) => {
    expect(gone('src/flow/flow.ts', text)).toEqual([])
  })
})
