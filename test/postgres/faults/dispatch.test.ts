import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { outboxOn, Placed, type TestOutbox } from '../support.ts'
import { until } from './support.ts'

/**
 * A dispatch may take minutes. A transaction that were open for as long would keep locks, a connection of the pool and
 * the horizon of the whole server, so the server is asked: while a publish function runs, none of the relay's
 * connections is in a transaction, and none of them holds a lock on a table.
 */

let t: TestOutbox
let watcher: pg.Client

beforeEach(async () => {
  t = await outboxOn()
  watcher = new pg.Client({ connectionString: t.database.url })
  await watcher.connect()
})
afterEach(async () => {
  await watcher.end()
  await t.end()
})

interface Busy {
  readonly pid: number
  readonly state: string
  readonly query: string
  readonly locks: string[] | null
}

/** Connections to this database that are in a transaction or hold locks, but for advisory ones. */
async function busy(): Promise<Busy[]> {
  const { rows } = await watcher.query(`
    SELECT activity.pid, state, query, array_agg(lock.mode) FILTER (WHERE lock.pid IS NOT NULL) AS locks
    FROM pg_stat_activity activity LEFT JOIN pg_locks lock ON lock.pid = activity.pid AND lock.locktype <> 'advisory'
    WHERE datname = current_database() AND activity.pid <> pg_backend_pid() AND backend_type = 'client backend'
    GROUP BY 1, 2, 3, xact_start HAVING xact_start IS NOT NULL OR count(lock.pid) > 0 OR state <> 'idle'`)
  return rows
}

async function connected(): Promise<number> {
  const { rows } = await watcher.query(`SELECT count(*)::int AS n FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'waybill relay%'`)
  return rows[0].n
}

describe.each([
  ['owner', { reader: 'owner' }],
  ['owners of two shards', { reader: 'owner', shards: 2 }],
  ['lease', { reader: 'lease' }],
  ['owner that removes what is published', { reader: 'owner', deleteOnPublish: true }],
] as const)('read by %s', (_, options) => {
  test('events are dispatched outside of any transaction', async () => {
    const problems: string[] = []
    const looks: number[] = []
    const look = async () => {
      // A renewal or the next read may be under way at any moment, and is soon over; what lasts is the dispatch.
      const idle = until(async () => (await busy()).length === 0, 5000)
      await idle.catch(async () =>
        problems.push(`not idle while an event is published: ${JSON.stringify(await busy())}`),
      )
      looks.push(await connected())
    }
    // One after the other, though events are out at once.
    let turn = Promise.resolve()
    const to = () => {
      turn = turn.then(look)
      return turn
    }
    await t.enqueue([1, 2, 3].map((n) => Placed({ n }, { key: `key ${n}` })))
    const relay = t.relay({ ...options, to })
    let done = 0
    for (let round = 0; round < 3 && done < 3; round++) done += (await relay.runOnce()).done
    expect(problems).toEqual([])
    expect(looks).toHaveLength(3)
    // Who has no connections is in no transaction either.
    for (const connections of looks) expect(connections).toBeGreaterThan(0)
  })
})
