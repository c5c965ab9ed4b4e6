import { describe, expect, test } from 'vitest'
import { STAGED } from '../../src/postgres/admin-replay.ts'
import { COLUMNS, ENQUEUED, STORED } from '../../src/postgres/columns.ts'
import { sql } from '../../src/postgres/sql.generated.ts'

const NAMES = Object.keys(COLUMNS)

/** The columns that a statement inserts into, in its order. */
function inserted(text: string, table: string): string[] {
  const found = new RegExp(`INSERT INTO \\{\\{${table}\\}\\} \\(([^)]*)\\)`).exec(text)
  return found![1]!.split(',').map((name) => name.trim())
}

/** The names that a statement gives to its parameters, each an array. */
function parameters(text: string): string[] {
  const found = /\bAS event \(([^)]*)\)/.exec(text)
  return found![1]!.split(',').map((name) => name.trim())
}

describe('columns are declared once, and the .sql files agree', () => {
  test('the table has them, with these types, in this order', () => {
    const [, body] = /CREATE TABLE IF NOT EXISTS \{\{outbox\}\} \(([\s\S]*?)\n\)/.exec(sql['outbox-create'])!
    const lines = body!.split('\n').map((line) => line.trim())
    const found = lines.flatMap((line) => {
      const [, name, type, rest] = /^([a-z_]+) +([a-z]+)(.*)$/.exec(line) ?? []
      return name === undefined ? [] : [[name, { type, nullable: !rest!.includes('NOT NULL') }]]
    })
    expect(found).toEqual(
      Object.entries(COLUMNS).map(([name, { type, ...rest }]) => [name, { type, nullable: 'nullable' in rest }]),
    )
  })

  test.each(['enqueue', 'enqueue-one', 'enqueue-dedup'] as const)('%s.sql writes what is enqueued', (name) => {
    const given = inserted(sql[name], 'outbox').filter((column) => column !== 'state' && column !== 'sequence')
    expect(given).toEqual(ENQUEUED)
    expect(new Set(sql[name].match(/\$\d+/g)).size).toBe(ENQUEUED.length)
  })

  test('replay-stage.sql takes what a replay keeps, in its order', () => {
    const given = inserted(sql['replay-stage'], 'staged').filter((name) => name !== 'state' && name !== 'attempts')
    expect(given).toEqual(STAGED)
    expect(parameters(sql['replay-stage'])).toHaveLength(STAGED.length)
  })

  test('archive-move.sql loses none', () => {
    expect(inserted(sql['archive-move'], 'archive')).toEqual(NAMES)
  })

  test('admin-list.sql shows columns there are, and no more than is stored', () => {
    const [, list] = /SELECT ([\s\S]*?)\nFROM/.exec(sql['admin-list'])!
    const shown = [...list!.matchAll(/event\.([a-z_]+)/g)].map(([, name]) => name)
    expect(shown.length).toBeGreaterThan(10)
    expect(shown.filter((name) => !(STORED as readonly string[]).includes(name!))).toEqual([])
  })
})
