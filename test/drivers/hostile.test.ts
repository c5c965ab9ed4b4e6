import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { HOSTILE } from '../support/hostile.ts'
import { drivers, type Opened } from './drivers.ts'

describe.each(drivers)('a transaction on $name whose function throws', ({ open }) => {
  let opened: Opened
  beforeAll(async () => {
    opened = await open()
    await opened.sql('CREATE TABLE kept (n int)')
  })
  afterAll(() => opened?.close())

  test.each(HOSTILE)('%s: is rolled back, and no connection is lost', async (_, make) => {
    // More often than a pool has connections.
    for (let i = 0; i < 14; i++) {
      const outcome = opened.db.transaction(async (tx) => {
        await (tx as { query?: (text: string) => Promise<unknown> }).query?.('INSERT INTO kept VALUES (1)')
        throw make()
      })
      expect(
        await outcome.then(
          () => 'committed',
          () => 'rolled back',
        ),
      ).toBe('rolled back')
    }
    expect(await opened.sql('SELECT count(*)::int AS n FROM kept')).toEqual([{ n: 0 }])
  })
})
