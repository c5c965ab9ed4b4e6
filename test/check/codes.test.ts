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

test('a code that is listed and thrown nowhere is found; one that a table of the code holds is not', () => {
  expect(judge("new WaybillError('KNOWN', 'x')")).toEqual(['docs/errors.md: IN_CLASS is thrown nowhere'])
  expect(judge("new WaybillError('KNOWN', 'x'); const advice = { '42P01': ['IN_CLASS', 'x'] }")).toEqual([])
})
