import { existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { chapters } from '../../scripts/readiness-map.ts'
import { judge, page, type Report } from '../../scripts/readiness-page.ts'
import { read, root } from './support.ts'

const lines = chapters.flatMap((chapter) => chapter.lines)

/** Suites that are data have the names of their cases here. */
const suites = readdirSync(join(root, 'src/testing')).map((name) => read(`src/testing/${name}`))

/** A title may be filled in (`%s`, `${…}`, `$name`): then the name must fit the whole of it. */
function hasTest(file: string, name: string): boolean {
  const text = read(file)
  const beside = [...text.matchAll(/from '\.\/([\w./-]+)'/g)].map(([, path]) => read(join(dirname(file), path!)))
  const texts = [text, ...beside, ...suites]
  const words = name.split(' > ').at(-1)!
  return texts.some((text) => titles(text).some((title) => fits(title, words)))
}

function titles(text: string): string[] {
  return [...text.matchAll(/'((?:[^'\\\n]|\\.)+)'|"((?:[^"\\\n]|\\.)+)"|`([^`\n]+)`/g)].map(
    ([, single, double, template]) => (single ?? double ?? template!).replaceAll("\\'", "'"),
  )
}

function fits(title: string, words: string): boolean {
  if (title.includes(words)) return true
  const parts = title.split(/%[sidj]|\$\{[^}]*\}|\$\w+/)
  if (parts.length === 1 || parts.join('').length < 10) return false
  return new RegExp(`^${parts.map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('.+')}$`).test(words)
}

describe('the map', () => {
  test('has each line once, and a test for each', () => {
    const ids = lines.map(({ id }) => id)
    expect(ids).toEqual([...new Set(ids)])
    expect(lines.filter(({ tests }) => tests.length === 0).map(({ id }) => id)).toEqual([])
  })

  test('has every row that must be shown', () => {
    const rows = (name: string, count: number) => Array.from({ length: count }, (_, n) => `${name}-${n + 1}`)
    const ids = new Set(lines.map(({ id }) => id))
    const counts = { A: 10, C: 7, E: 15, TX: 3, PG: 15, RD: 11, SG: 8, CORE: 11 }
    const needed = Object.entries(counts).flatMap(([name, count]) => rows(name, count))
    // Of these a line may have parts.
    const parted = [...rows('B', 19), ...rows('D', 6), ...rows('MQ', 5), ...rows('OP', 3), 'CQ-1', 'CQ-3', 'CQ-4']
    for (const [part, count] of [
      ['B-13', 9],
      ['B-14', 7],
      ['B-15', 11],
      ['B-16', 8],
      ['B-17', 6],
      ['B-18', 5],
      ['B-19', 16],
      ['C-10.1', 7],
      ['C-10.2', 6],
      ['C-10.3', 2],
    ] as const) {
      expect([...ids].filter((id) => id.startsWith(`${part}.`))).toHaveLength(count)
    }
    expect(needed.filter((id) => !ids.has(id))).toEqual([])
    expect(parted.filter((row) => ![...ids].some((id) => id === row || id.startsWith(`${row}.`)))).toEqual([])
  })

  test('a name that no test has would be noticed', () => {
    const { file, name } = lines[0]!.tests[0]!
    expect(hasTest(file, name)).toBe(true)
    for (const wrong of [`${name} and more`, `no ${name}`, 'something else']) expect(hasTest(file, wrong)).toBe(false)
  })

  test.each(lines)('$id names tests that exist', ({ tests }) => {
    for (const { file, name } of tests) {
      expect(existsSync(join(root, file)), file).toBe(true)
      // Those run in the long tiers only, and `npm run readiness` would find them not run.
      expect(file).not.toMatch(/\.full\.test\.ts$/)
      expect(hasTest(file, name), `${file}: ${name}`).toBe(true)
    }
  })
})

describe('the page', () => {
  const chapter = (name: string) => [
    { title: 'One', lines: [{ id: 'X-1', text: 'it holds', tests: [{ file: 'test/a.test.ts', name }] }] },
  ]
  const report = (...statuses: string[]): Report => ({
    testResults: [
      {
        name: '/somewhere/test/a.test.ts',
        assertionResults: statuses.map((status) => ({
          ancestorTitles: ['suite'],
          title: 'holds',
          status,
          duration: 2,
        })),
      },
    ],
  })
  const result = (name: string, ...statuses: string[]) => judge(chapter(name), report(...statuses))[0]!.lines[0]!.result

  test('a line holds when all its tests passed, and one that did not run shows nothing', () => {
    expect(result('suite > holds', 'passed', 'passed')).toBe('passed')
    expect(result('holds', 'passed', 'failed')).toBe('failed')
    expect(result('holds', 'skipped')).toBe('not run')
    expect(result('another', 'passed')).toBe('not run')
  })

  test('is written with tests, times and versions', () => {
    const run = { report: report('passed'), took: 2000, servers: ['postgres 18.4'] }
    const text = page(judge(chapter('holds'), run.report), run, { node: 'v20.1.0', pglite: '1', date: 'today' })
    expect(text).toContain('| X-1 | it holds | [a](../test/a.test.ts): holds | 2 ms | passed |')
    expect(text).toContain('Node 20.1.0, PGlite 1, postgres 18.4')
    expect(text).toContain('1 lines shown, 0 failed, 0 not run')
  })
})
