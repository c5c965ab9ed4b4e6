import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'

const root = fileURLToPath(new URL('../..', import.meta.url))
const read = (path: string) => readFileSync(join(root, path), 'utf8')
const decisions = readdirSync(join(root, 'docs/decisions')).map((name) => `docs/decisions/${name}`)

describe('decisions', () => {
  test.each(decisions)('%s is short, with the problem and the decision', (path) => {
    const text = read(path)
    expect(text.split('\n').length).toBeLessThanOrEqual(26)
    for (const part of ['Problem', 'Decision']) expect(text).toContain(`**${part}`)
  })
})

test('docs/guides/projections.md says when a read model is worth it, and when not', () => {
  const section = read('docs/guides/projections.md')
    .split(/^## /m)
    .find((part) => part.startsWith('When to introduce it'))
  const rows = section!.split('\n').filter((line) => line.startsWith('| '))
  const [before, ...signals] = rows.map((row) => row.split('|').map((cell) => cell.trim()))
  expect(before![1]).toContain('events must be there first')
  expect(signals.map(([, signal, advice]) => [advice, signal])).toEqual([
    ['introduce it', expect.stringMatching(/join three tables .* several services/)],
    ['introduce it', expect.stringMatching(/^ten reads .* each write/)],
    ['introduce it', expect.stringContaining('very different performance')],
    ['leave it', expect.stringContaining('one table answers')],
  ])
})
