import { expect, test } from 'vitest'
import { apart, MOST, WALK } from '../../scripts/check/walk.ts'

const file = (path: string, text = '') => ({ path, text })

test('the list is short enough to be walked, and names each file once', () => {
  expect(WALK.length).toBeLessThanOrEqual(MOST)
  expect(new Set(WALK).size).toBe(WALK.length)
})

test('a file that no other on the way imports is found', () => {
  const files = [
    file('src/outbox/relay.ts', "import { Flow } from '../flow/flow.ts'"),
    file('src/flow/flow.ts'),
    file('src/flow/window.ts'),
  ]
  expect(apart(files)).toEqual(['src/flow/window.ts is on the way, but no other file on it imports it'])
})

test('a statement is found by its name', () => {
  const sql = file('src/postgres/sql/scan-ready.sql')
  expect(apart([file('src/postgres/store.ts', "sql['scan-ready']"), sql])).toEqual([])
  expect(apart([file('src/postgres/store.ts', "sql['scan-due']"), sql])).toHaveLength(1)
})
