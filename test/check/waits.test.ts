import { expect, test } from 'vitest'
import { waitProblems } from '../../scripts/check/waits.ts'

const found = (text: string, path = 'test/a.test.ts') =>
  waitProblems({ path, text }).map((line) => line.split(':')[1]!.trim())

test.each([
  ["test('a', async () => {\n await until('x', look, 120_000) })", 'waits 120000 ms where a test may take 120000'],
  ["test('a', { timeout: 30_000 }, async () => { await child.line('x', 30_000) })", 'waits 30000 ms'],
  ["test('a', async () => { await sink.arrived(3, 9000) }, 5000)", 'waits 9000 ms where a test may take 5000'],
  ["it.each([1])('a', async () => { await eventually('x', look, { limit: 180_000 }) })", 'waits 180000 ms'],
  ['export async function until(what: string, limit = 180_000) { await eventually(what) }', 'waits 180000 ms'],
  ['async function until(holds: () => boolean) { while (!holds()) await sleep(10) }', 'a loop of its own'],
])('a limit that lets no test speak is found: %s', (text, what) => {
  expect(waitProblems({ path: 'test/a.test.ts', text }).join('\n')).toContain(what)
})

test.each([
  "test('a', async () => { await until('x', look, 60_000) })",
  "test('a', { timeout: 300_000 }, async () => { await until('x', look, 200_000) })",
  "test('a', async () => { await clock.until(() => true, 3_600_000) })",
  "test('a', LONG, async () => { await until('x', look, 600_000) })",
  'async function until(what: string, look: () => boolean) { await eventually(what, look) }',
])('one below it is not: %s', (text) => {
  expect(found(text)).toEqual([])
})

test('the long tests may wait longer', () => {
  const text = "test('a', async () => { await until('x', look, 300_000) })"
  expect(found(text, 'test/a.full.test.ts')).toEqual([])
  expect(found(text)).toHaveLength(1)
})
