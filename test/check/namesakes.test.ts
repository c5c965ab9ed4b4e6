import { expect, test } from 'vitest'
import { namesakeProblems } from '../../scripts/check/namesakes.ts'

const file = (path: string, text: string) => ({ path, text })

test('a type that two files declare is found, whether it is exported or not', () => {
  const files = [file('src/a/one.ts', 'export interface Claim {}'), file('src/b/two.ts', 'type Claim = string')]
  expect(namesakeProblems(files)).toEqual([
    'Claim is declared in src/a/one.ts, src/b/two.ts: give each a name of its own',
  ])
})

test('files of one name have one role, and may use the same words', () => {
  expect(namesakeProblems([file('src/a/row.ts', 'interface Row {}'), file('src/b/row.ts', 'class Row {}')])).toEqual([])
})

test('what is imported or declared inside a function is no namesake', () => {
  const files = [
    file('src/a/one.ts', 'export class Claim {}'),
    file('src/b/two.ts', "import type { Claim } from '../a/one.ts'\nfunction f() { type Claim = 1 }"),
  ]
  expect(namesakeProblems(files)).toEqual([])
})
