import fc from 'fast-check'
import { expect, test } from 'vitest'
import { collapse, type WriteStep } from '../../src/projection/collapse.ts'
import { sum } from '../../src/projection/decimal.ts'
import { add, type Change, patch, patchWhere, put, remove } from '../../src/projection/index.ts'

type Row = Record<string, unknown>
type Table = Map<string, Row>

/** One change after the other, as the words say. */
function fold(table: Table, change: Change): void {
  if (change.kind === 'patchWhere') {
    for (const row of table.values()) {
      const equal = Object.entries(change.where).every(([name, value]) => (row[name] ?? null) === value)
      if (equal) Object.assign(row, change.columns)
    }
  } else if (change.kind === 'put') {
    table.set(String(change.key), { ...table.get(String(change.key)), ...change.columns })
  } else if (change.kind === 'remove') table.delete(String(change.key))
  else if (change.kind !== 'write') {
    const row = table.get(String(change.key))
    if (row === undefined) return
    if (change.kind === 'patch') Object.assign(row, change.columns)
    else if (change.kind === 'add')
      for (const [name, n] of Object.entries(change.amounts)) row[name] = sum(row[name] ?? 0, n)
  }
}

function run(table: Table, step: WriteStep): void {
  if (step.kind === 'where') fold(table, patchWhere(step.where, step.columns))
  if (step.kind !== 'rows') return
  for (const { kind, rows } of step.groups) {
    for (const { key, set, add: added } of rows) {
      if (kind === 'remove') table.delete(key)
      else if (kind === 'put') fold(table, put(key, set))
      else {
        if (Object.keys(set).length > 0) fold(table, patch(key, set))
        if (Object.keys(added).length > 0) fold(table, add(key, added))
      }
    }
  }
}

const key = fc.constantFrom('1', '2', '3')
const value = fc.oneof(fc.integer({ min: -3, max: 3 }), fc.constant(null))
const columns = fc.dictionary(fc.constantFrom('a', 'b', 'c'), value, { minKeys: 1, maxKeys: 3, noNullPrototype: true })
const amounts = fc.dictionary(fc.constantFrom('a', 'b'), fc.constantFrom(1, -2, 0.1, '0.20', 3n), {
  minKeys: 1,
  noNullPrototype: true,
})
const change: fc.Arbitrary<Change> = fc.oneof(
  fc.tuple(key, columns).map(([k, c]) => put(k, c)),
  fc.tuple(key, columns).map(([k, c]) => patch(k, c)),
  fc.tuple(key, amounts).map(([k, c]) => add(k, c)),
  key.map((k) => remove(k)),
  fc.tuple(value, columns).map(([a, c]) => patchWhere({ a }, c)),
)

const plain = (table: Table) =>
  [...table].sort().map(([k, row]) => [
    k,
    Object.fromEntries(
      Object.entries(row)
        .map(([n, v]) => [n, v === null ? null : Number(v)])
        .sort(),
    ),
  ])

test('collapsed changes leave what they leave one by one', () => {
  fc.assert(
    fc.property(fc.array(fc.array(change, { maxLength: 3 }), { maxLength: 20 }), fc.boolean(), (batch, counts) => {
      const [one, few]: [Table, Table] = [new Map([['3', { a: 1 }]]), new Map([['3', { a: 1 }]])]
      for (const each of batch.flat()) fold(one, each)
      for (const step of collapse(batch, String, counts)) run(few, step)
      expect(plain(few)).toEqual(plain(one))
    }),
    { numRuns: 3000 },
  )
})

test('one statement for each kind and set of columns, whatever the order of names; a patchWhere cuts', () => {
  const steps = collapse(
    [
      [put('1', { a: 1, b: 2 })],
      [put('2', { b: 1, a: 2 })],
      [patch('3', { a: 1 })],
      [patchWhere({ a: 1 }, { b: 0 })],
      [put('1', { a: 5 })],
    ],
    String,
    false,
  )
  expect(
    steps.map((step) =>
      step.kind === 'rows' ? step.groups.map(({ kind, rows }) => `${kind} ${rows.length}`) : step.kind,
    ),
  ).toEqual([['put 2', 'patch 1'], 'where', ['put 1']])
})

test('decimals are added without loss', () => {
  expect(sum(0.1, 0.2)).toBe('0.3')
  expect(sum('-0.05', 1n)).toBe('0.95')
  expect(sum(1e21, 1)).toBe('1000000000000000000001')
  expect(sum('x', 1)).toBeUndefined()
})
