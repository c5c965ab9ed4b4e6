import type { PGlite } from '@electric-sql/pglite'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { postgres } from '../../src/postgres/index.ts'
import { freshPGlite } from '../support/pglite.ts'

const POINTS = ['outbox', 'outbox_scope_terms', 'outbox_scope_members']

describe('leadership of scopes', () => {
  let pool: PGlite
  beforeEach(async () => {
    pool = await freshPGlite()
  })
  afterEach(() => pool.close())

  async function there(): Promise<string[]> {
    const { rows } = await pool.query<{ name: string }>('SELECT tablename AS name FROM pg_tables')
    return POINTS.filter((point) => rows.some(({ name }) => name === point))
  }

  test('its tables are added to a store that has none, and relays of the old code are not disturbed', async () => {
    const before = postgres({ pool })
    await before.migrate()
    expect(await there()).toEqual(['outbox'])
    const term = await before.leadership('outbox').acquire('a', 0, 60_000)

    const db = postgres({ pool, leadership: true })
    expect((await db.migrate()).at(-1)).toEqual({ table: 'outbox_scope_terms', from: 0, to: 1 })
    expect(await there()).toEqual(POINTS)
    expect((await db.migrate()).at(-1)).toEqual({ table: 'outbox_scope_terms', from: 1, to: 1 })
    await before.outbox.check()
    expect(await before.leadership('outbox').renew('a', term!, 60_000)).toBe(true)
    expect(await db.leadership('projection').acquire('a', 0, 60_000)).toMatchObject({ epoch: '1', abandoned: false })

    await db.migrations.down()
    expect(await there()).toEqual([])
  })

  test('a scope without tables says what to do; so does one that was not migrated', async () => {
    const without = postgres({ pool })
    expect(() => without.leadership('projection')).toThrow(/give postgres\(\{ pool, leadership: true \}\)/)
    expect(() => without.leadership('projection/orders/1')).toThrow(/give postgres\(\{ pool, projections: true \}\)/)
    await without.migrate()
    const db = postgres({ pool, leadership: true })
    await expect(db.leadership('projection').members()).rejects.toMatchObject({ code: 'NOT_MIGRATED' })
  })

  test('a name that could not stand in a statement is refused', () => {
    const db = postgres({ pool, leadership: true })
    for (const name of ['', "a'b", 'x'.repeat(201)]) {
      expect(() => db.leadership(name)).toThrow(/is not the name of a scope/)
    }
  })

  test('a probe of a scope is any text', async () => {
    const db = postgres({ pool, leadership: true })
    await db.migrate()
    const scope = db.leadership('projection/orders')
    const term = (await scope.acquire('a', 0, 60_000))!
    await scope.recordProbe(term, 'page 7')
    await pool.query(`UPDATE outbox_scope_terms SET expires_at = '-infinity' WHERE shard = 0`)
    expect(await scope.acquire('b', 0, 60_000)).toMatchObject({ abandoned: true, probe: 'page 7' })
  })
})
