import pg from 'pg'
import { expect, test } from 'vitest'
import { event } from '../../src/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { postgres } from '../../src/postgres/index.ts'
import type { PostgresOutboxOptions } from '../../src/postgres/outbox.ts'
import { collector } from '../../src/testing/index.ts'
import { describeOn, freshDatabase } from '../support/services.ts'

const Placed = event<{ n: number }>('order.placed')
const WHO = { by: 'ada', note: 'test' }

async function shop(kind: 'postgres' | 'postgres15', outbox: PostgresOutboxOptions) {
  const database = await freshDatabase(kind)
  const pool = new pg.Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {})
  const db = postgres({ pool, outbox })
  await db.migrate()
  const sink = collector()
  return {
    db,
    pool,
    sink,
    admin: db.outbox.admin,
    enqueue: (numbers: number[], key: string, id?: string) =>
      db.withTransaction((tx) =>
        db.outbox.enqueue(
          tx,
          numbers.map((n) => Placed({ n }, id === undefined ? {} : { id })),
          { key },
        ),
      ),
    /** Relays until nothing is left, and answers the numbers that arrived, by key. */
    async relay(): Promise<Record<string, number[]>> {
      const before = sink.messages.length
      const relay = new Relay({ from: db.outbox, to: sink, retry: { backoff: { min: 0, jitter: 0 } } })
      while ((await relay.runOnce()).taken > 0);
      await relay.stop()
      const byKey: Record<string, number[]> = {}
      for (const message of sink.messages.slice(before)) {
        const key = message.key ?? ''
        byKey[key] = [...(byKey[key] ?? []), JSON.parse(message.data as string).n]
      }
      return byKey
    },
    async end() {
      await pool.end()
      await database.drop()
    },
  }
}

describeOn(['postgres', 'postgres15'], 'admin and relay on %s', (kind) => {
  test.each<[string, PostgresOutboxOptions]>([
    ['one table', {}],
    ['time partitions', { partition: 'day' }],
  ])('in %s: re-armed and replayed events keep the order of their key', async (_, options) => {
    const t = await shop(kind, options)
    await t.enqueue([1, 2, 3, 4], 'a')
    await t.enqueue([1, 2], 'b')
    for (const n of [1, 2]) {
      t.sink.reject({ where: ({ key, data }) => key === 'a' && JSON.parse(data as string).n === n, times: 1 })
    }
    expect(await t.relay()).toEqual({ b: [1, 2] })
    expect(await t.admin.rearm({}, WHO)).toBe(1)
    // The second is rejected in turn, and holds back the rest.
    expect(await t.relay()).toEqual({ a: [1] })
    expect(await t.admin.rearm({}, WHO)).toBe(1)
    await t.enqueue([5], 'a')
    expect(await t.relay()).toEqual({ a: [2, 3, 4, 5] })
    await t.enqueue([6], 'a')
    expect(await t.admin.replay({ key: 'a' }, WHO)).toBe(5)
    expect(await t.relay()).toEqual({ a: [6, 1, 2, 3, 4, 5] })
    expect(await t.admin.replay({ key: 'b' }, WHO, { asNew: true })).toBe(2)
    expect(await t.relay()).toEqual({ b: [1, 2] })
    expect(new Set(t.sink.messages.map(({ id }) => id)).size).toBe(10)
    await t.end()
  })

  test('the same id again changes nothing while ids are kept, also once the event is gone', async () => {
    const t = await shop(kind, { partition: 'day' })
    const id = '3b241101-e2bb-4255-8caf-4136c566a962'
    const [first] = (await t.enqueue([1], 'a', id)) as string[]
    expect(await t.relay()).toEqual({ a: [1] })
    await t.pool.query('DELETE FROM outbox')
    expect(await t.enqueue([1], 'a', id)).toEqual([first])
    expect(await t.relay()).toEqual({})
    await t.pool.query(`UPDATE outbox_ids SET created_at = now() - interval '8 days'`)
    expect(await t.admin.clean()).toBe(1)
    await t.enqueue([1], 'a', id)
    expect(await t.relay()).toEqual({ a: [1] })
    await t.end()
  })
})
