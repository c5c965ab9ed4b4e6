import { describe, expect, test } from 'vitest'
import { suite, within } from '../../src/testing/index.ts'

const run = async () => {}
const cases = [
  { name: 'keeps order', needs: ['ordered'], run },
  { name: 'arrives', run },
]

describe('conformance', () => {
  test('a case whose features are not declared is skipped and says so', () => {
    expect(suite('mine', cases, {}).map(({ name, skip }) => [name, skip])).toEqual([
      ['keeps order', 'mine does not declare: ordered'],
      ['arrives', undefined],
    ])
    expect(suite('mine', cases, { ordered: true })[0]!.skip).toBeUndefined()
    expect(suite('mine', cases, { ordered: false })[0]!.skip).toBeDefined()
  })

  test('a skip names a case that exists and states its reason', () => {
    const [skipped] = suite('mine', cases, { ordered: true }, { skips: { 'keeps order': 'two partitions by design' } })
    expect(skipped!.skip).toBe('two partitions by design')
    expect(() => suite('mine', cases, {}, { skips: { 'keeps odrer': 'two partitions by design' } })).toThrow(
      'no case "keeps odrer" to skip; did you mean "keeps order"?',
    )
    expect(() => suite('mine', cases, {}, { skips: { arrives: ' ' } })).toThrow('needs a reason')
    expect(() => suite('mine', cases, {}, { skips: { arrives: 'flaky' } })).toThrow('needs a reason')
  })

  test('two cases of one name are refused: a skip would mean both', () => {
    expect(() => suite('mine', [...cases, cases[0]!], {})).toThrow('two cases are named "keeps order"')
  })

  test('within gives the result, the error, or how far it came', async () => {
    expect(await within(1000, Promise.resolve(7), () => '')).toBe(7)
    await expect(within(1000, Promise.reject(new Error('no')), () => '')).rejects.toThrow('no')
    await expect(within(10, new Promise(() => {}), () => '3 of 4')).rejects.toThrow('after 10 ms: 3 of 4')
  })
})
