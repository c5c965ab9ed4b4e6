import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { judgeBaseline, judgeFault } from '../../scripts/mutations/judge.ts'
import { type Mutation, mutate, rot } from '../../scripts/mutations/mutation.ts'

const root = mkdtempSync(join(tmpdir(), 'waybill-mutation-'))
mkdirSync(join(root, 'src'))
writeFileSync(join(root, 'src/twice.ts'), 'await commit()\nack()\nack()\n')
writeFileSync(join(root, 'src/twice.test.ts'), '')
afterAll(() => rmSync(root, { recursive: true }))

const fault: Mutation = {
  name: 'commits never',
  file: 'src/twice.ts',
  find: 'await commit()',
  replace: '$& $1',
  test: 'src/twice.test.ts',
}

describe('a mutation rots when', () => {
  test.each<[string, Partial<Mutation>, string | undefined]>([
    ['nothing: it fits', {}, undefined],
    ['its snippet is gone', { find: 'rollback()' }, 'occurs 0 times in src/twice.ts'],
    ['its snippet is there twice', { find: 'ack()' }, 'occurs 2 times'],
    ['its snippet is empty', { find: '' }, 'occurs 0 times'],
    ['it changes nothing', { replace: 'await commit()' }, 'are the same'],
    ['its source is gone', { file: 'src/gone.ts' }, 'src/gone.ts does not exist'],
    ['its test is gone', { test: 'src/gone.test.ts' }, 'src/gone.test.ts does not exist'],
  ])('%s', (_, change, why) => {
    const found = rot(root, { ...fault, ...change })
    if (why === undefined) expect(found).toBeUndefined()
    else expect(found).toContain(why)
  })
})

test('the replacement is taken literally', () => {
  expect(mutate('await commit()\nack()', fault)).toBe('$& $1\nack()')
})

describe('the verdict', () => {
  const run = (
    tests: Record<string, 'passed' | 'failed' | 'other'>,
    rest: { success?: boolean; timedOut?: boolean } = {},
  ) => ({
    tests: Object.entries(tests).map(([name, state]) => ({ name, state, ms: 1 })),
    success: !Object.values(tests).includes('failed'),
    timedOut: false,
    output: 'what it printed',
    ...rest,
  })
  const named = { ...fault, expects: 'acks after' }

  test('without the fault the test must be green', () => {
    expect(judgeBaseline(fault, run({ a: 'passed' }))).toBeUndefined()
    expect(judgeBaseline(fault, run({ a: 'passed', b: 'failed' }))).toMatchObject({ verdict: 'rotted' })
    expect(judgeBaseline(fault, run({ a: 'passed' }, { success: false }))).toMatchObject({ verdict: 'rotted' })
    expect(judgeBaseline(fault, run({}))).toMatchObject({ verdict: 'rotted' })
    expect(judgeBaseline(fault, run({ a: 'other' }))).toMatchObject({ verdict: 'rotted' })
    expect(judgeBaseline(fault, run({}, { timedOut: true }))).toMatchObject({ verdict: 'rotted' })
  })

  test('without the fault only the expected test counts, if one is named', () => {
    expect(judgeBaseline(named, run({ 'router acks after commit': 'passed', other: 'failed' }))).toBeUndefined()
    expect(judgeBaseline(named, run({ 'router acks after commit': 'failed' }))?.verdict).toBe('rotted')
    expect(judgeBaseline(named, run({ other: 'passed' }))?.why).toContain("no test whose name contains 'acks after'")
  })

  test('with the fault some test must be red', () => {
    expect(judgeFault(fault, run({ a: 'passed', b: 'failed' }))).toEqual({ verdict: 'killed', why: 'b' })
    expect(judgeFault(fault, run({ a: 'passed' }))).toMatchObject({ verdict: 'SURVIVED' })
    expect(judgeFault(fault, run({ a: 'passed' }, { success: false }))).toMatchObject({ verdict: 'killed' })
    expect(judgeFault(fault, run({}, { timedOut: true }))).toMatchObject({ verdict: 'killed' })
  })

  test('with the fault the expected test must be red, if one is named', () => {
    expect(judgeFault(named, run({ 'router acks after commit': 'failed' })).verdict).toBe('killed')
    expect(judgeFault(named, run({ 'router acks after commit': 'passed', other: 'failed' })).verdict).toBe('SURVIVED')
  })

  test('a fault that is not even code proves nothing', () => {
    expect(judgeFault(fault, run({}, { success: false }))).toMatchObject({ verdict: 'rotted' })
  })
})
