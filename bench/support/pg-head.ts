import type { BenchServer } from './pg-server.ts'

export type Head = 'delayed' | 'dead' | 'blocked' | 'published'

/** What makes ready rows into these. A blocked event waits behind a dead one of its key. */
const BECOME: Record<Head, string> = {
  delayed: `UPDATE outbox SET state = 'scheduled', available_at = clock_timestamp() + interval '1 day' WHERE sequence <= $1`,
  dead: `UPDATE outbox SET state = 'dead', key = 'dead-' || sequence, attempts = 25, last_error = 'refused' WHERE sequence <= $1`,
  blocked: `UPDATE outbox SET state = CASE WHEN sequence <= 2000 THEN 'dead' ELSE 'held' END,
    key = 'blocked-' || sequence % 2000 WHERE sequence <= $1`,
  published: `UPDATE outbox SET state = 'published', published_at = clock_timestamp() WHERE sequence <= $1`,
}

/** Copies rows within the table until there are `rows`: ten million by enqueue would take a quarter of an hour. */
export async function multiply(server: BenchServer, database: string, rows: number): Promise<void> {
  const columns = `tenant_id, topic, key, source, event_type, event_version, attributes, payload`
  for (;;) {
    const { rows: found } = await server.sql(database, 'SELECT count(*)::int AS count FROM outbox')
    const missing = rows - found[0].count
    if (missing <= 0) return
    const copy = `INSERT INTO outbox (event_id, ${columns}) SELECT gen_random_uuid(), ${columns} FROM outbox
      ORDER BY sequence LIMIT ${Math.min(missing, 500_000)}`
    await server.sql(database, copy)
  }
}

/** The first `count` events are such that none of them can go out. */
export async function atHead(server: BenchServer, database: string, head: Head, count: number): Promise<void> {
  await server.sql(database, BECOME[head], [count])
}
