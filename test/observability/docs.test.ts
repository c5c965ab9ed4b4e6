import { readFileSync } from 'node:fs'
import ts from 'typescript'
import { expect, test } from 'vitest'
import { TELEMETRY_NAMES } from '../../src/core/index.ts'
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

const docs = read('docs/telemetry.md')

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
