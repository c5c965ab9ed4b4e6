import { readdirSync, readFileSync } from 'node:fs'
import ts from 'typescript'
import { expect, test } from 'vitest'
import { TELEMETRY_NAMES } from '../../src/core/index.ts'
import { TIMES } from '../../src/core/log-line.ts'
import { EVENT_LEVELS, METRICS } from '../../src/observability/index.ts'

const read = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')

/** The rows of the table below a heading, each as its cells. */
function table(markdown: string, heading: string): string[][] {
  const section = markdown.split(/^## /m).find((part) => part.startsWith(`${heading}\n`)) ?? ''
  const lines = section.split('\n').filter((line) => line.startsWith('|'))
  return lines.slice(2).map((line) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  )
}

/** The fields of each event, in the order of the interface that declares them. */
function declaredFields(): Map<string, string[]> {
  const file = ts.createSourceFile('t.ts', read('src/core/telemetry.ts'), ts.ScriptTarget.Latest)
  const events = file.statements.find((node) => ts.isInterfaceDeclaration(node) && node.name.text === 'TelemetryEvents')
  const nameOf = (member: ts.TypeElement) => (member.name as ts.Identifier | ts.StringLiteral).text
  return new Map(
    (events as ts.InterfaceDeclaration).members.map((member) => {
      const shape = (member as ts.PropertySignature).type as ts.TypeLiteralNode
      return [nameOf(member), shape.members.map(nameOf)]
    }),
  )
}

/** The names of all fields that are numbers. */
function declaredNumbers(): Set<string> {
  const events = read('src/core/telemetry.ts').split('export interface TelemetryEvents')[1]!.split('\n}\n')[0]!
  return new Set([...events.matchAll(/(\w+)\??: number\b(?!\[)/g)].map(([, name]) => name!))
}

const docs = read('docs/telemetry.md')

test('every time has its unit in a log', () => {
  // Counts, attempts, versions and numbers of things.
  const COUNTS =
    'count failures unsettled done retry dead release stale attempt attempts version newestKnown partitions shard shards duplicates restored dropped released headed enqueued already suppressed other failed takeovers parked pid'
  const numbers = [...declaredNumbers()]
  expect(numbers).toEqual(expect.arrayContaining(['took', 'retryIn', 'waitedFor', 'count']))
  const neither = numbers.filter((name) => !COUNTS.split(' ').includes(name) && !Object.hasOwn(TIMES, name))
  expect(neither, 'a time belongs into TIMES of src/core/log-line.ts, a count into COUNTS here').toEqual([])
  expect(Object.values(TIMES).filter((name) => !name.endsWith('Ms'))).toEqual([])
})

test('docs/telemetry.md has every event, with its levels and its fields', () => {
  const fields = declaredFields()
  expect([...fields.keys()]).toEqual(TELEMETRY_NAMES)
  const expected = TELEMETRY_NAMES.map((name) => {
    const level = EVENT_LEVELS[name]
    const levels = typeof level === 'string' ? level : `${level.levels.join(', ')} (${level.why})`
    return [`\`${name}\``, levels, fields.get(name)!.join(', ')]
  })
  const rows = table(docs, 'Events')
  expect(rows.map((row) => row.slice(0, 3))).toEqual(expected)
  for (const [name, , , meaning] of rows) expect(meaning, `what ${name} means`).toMatch(/\w{3}.*\.$/)
})

test('docs/telemetry.md has every metric, with its kind, its labels and its help', () => {
  const expected = METRICS.map(({ name, kind, labels, help }) => [`\`${name}\``, kind, labels.join(', '), help])
  expect(table(docs, 'Metrics')).toEqual(expected)
})

test('pages name no event that does not exist', () => {
  const pages = readdirSync(new URL('../../docs/guides', import.meta.url)).map((name) => `docs/guides/${name}`)
  // What a handler is given has fields too.
  const names = new Set<string>([...TELEMETRY_NAMES, 'message.data', 'message.key', 'message.id', 'message.type'])
  const named = pages.flatMap((page) =>
    [...read(page).matchAll(/`((?:flow|messages?|settlement|ack|worker|task|leases|bus)\.[a-z_]+)`/g)].map(
      ([, name]) => name!,
    ),
  )
  expect(named.length).toBeGreaterThan(10)
  expect(named.filter((name) => !names.has(name))).toEqual([])
})
