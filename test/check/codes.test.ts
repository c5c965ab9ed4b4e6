import { expect, test } from 'vitest'
import { compare } from '../../scripts/check/codes.ts'

const INDEX = '| code | what happened |\n|---|---|\n| `KNOWN` | … |\n| `IN_CLASS` | … |\n'
const judge = (text: string, index = INDEX) => compare([{ path: 'src/a.ts', text }], index)
const both = "new WaybillError('KNOWN', 'x'); class A extends WaybillError { constructor() { super('IN_CLASS', 'x') } }"

test('codes that are thrown and listed are fine', () => {
  expect(judge(both)).toEqual([])
})

test('a code that is thrown and not listed is found, in a class too', () => {
  expect(judge(`${both}\nthrow new WaybillError(\n  'NEW_ONE',\n  'x')`)).toEqual([
    'src/a.ts: NEW_ONE does not stand in docs/errors.md',
  ])
  expect(judge(`${both}; class B extends WaybillError { constructor() { super('OTHER', '') } }`)).toHaveLength(1)
})

test('a code in the options of an error, or in a table of advice, is found too', () => {
  expect(judge(`${both}; new Unavailable('x', { code: 'BY_OPTION' })`)).toHaveLength(1)
  expect(judge(`${both}; const advice = { '55P03': ['IN_TABLE', \`\${t} is locked\`] }`)).toHaveLength(1)
})

test('a code that a function makes an error of is found where it is given, named or passed on', () => {
  const maker = 'class A { #lose(code: string, why: string) { throw new WaybillError(code, why) }'
  const missing = (text: string) => judge(`${both}; ${text}`).map((problem) => problem.split(' ')[1])
  expect(missing(`${maker} end() { this.#lose('GIVEN', 'x') } }`)).toEqual(['GIVEN'])
  expect(missing(`${maker} #end(code: string) { this.#lose(code, 'x') } f() { this.#end('PASSED_ON') } }`)).toEqual([
    'PASSED_ON',
  ])
  expect(missing("const AHEAD = 'CONSTANT'; throw new WaybillError(AHEAD, 'x')")).toEqual(['CONSTANT'])
  expect(missing("const f = (a: string, code = 'DEFAULT') => new WaybillError(code, a); f('NO_CODE')")).toEqual([
    'DEFAULT',
  ])
  expect(missing("type C = 'ONE' | 'TWO'; function f(code: C) { throw new WaybillError(code, '') }")).toEqual([
    'ONE',
    'TWO',
  ])
  expect(missing("throw new WaybillError(late ? 'LATE' : 'KNOWN', 'x')")).toEqual(['LATE'])
})

test('a function of another file counts where it is imported, and one of the same name does not', () => {
  const maker = 'export function lost(code: string) { return new WaybillError(code) }'
  const found = (text: string) =>
    compare(
      [
        { path: 'src/maker.ts', text: `${maker}; ${both}` },
        { path: 'src/user.ts', text },
      ],
      INDEX,
    )
  expect(found("import { lost } from './maker.ts'; throw lost('GIVEN')")).toEqual([
    'src/user.ts: GIVEN does not stand in docs/errors.md',
  ])
  expect(found("function lost(why: string) {} lost('NO_CODE')")).toEqual([])
})

test('a code that is listed and thrown nowhere is found; one that a table of the code holds is not', () => {
  expect(judge("new WaybillError('KNOWN', 'x')")).toEqual(['docs/errors.md: IN_CLASS is thrown nowhere'])
  expect(judge("new WaybillError('KNOWN', 'x'); const advice = { '42P01': ['IN_CLASS', 'x'] }")).toEqual([])
})
