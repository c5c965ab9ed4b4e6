import pg from 'pg'
import { postgres } from 'waybill/postgres'

/** Everything the contestants need, in one database: ours, the bare tables, and a table that steps write. */
export async function create(url: string): Promise<void> {
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  try {
    await postgres({ pool, sagas: true, barrier: true }).migrate()
    await pool.query(`
      CREATE EXTENSION IF NOT EXISTS pg_stat_statements;
      CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 50);
      INSERT INTO counters SELECT i, 0 FROM generate_series(0, 999) AS i;
      CREATE TABLE bare_sagas (
        id uuid PRIMARY KEY, saga_type text NOT NULL, status text NOT NULL DEFAULT 'running', current_step text,
        version int NOT NULL DEFAULT 1, input jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz) WITH (fillfactor = 70);
      CREATE TABLE bare_steps (
        saga_id uuid NOT NULL, step_name text NOT NULL, ordinal int NOT NULL, status text NOT NULL DEFAULT 'pending',
        output jsonb, started_at timestamptz NOT NULL DEFAULT clock_timestamp(), executed_at timestamptz,
        PRIMARY KEY (saga_id, step_name)) WITH (fillfactor = 80)`)
  } finally {
    await pool.end()
  }
}

/** Sagas that have ended, each with three steps. Their ids are random: as old and new ones lie side by side in an index. */
export async function fillFinished(url: string, count: number): Promise<void> {
  await inOne(url, [
    `INSERT INTO saga_executions (id, saga_type, definition, status, current_step, version, input, created_at, updated_at, ended_at)
     SELECT gen_random_uuid(), 'bench', 'bench@1#000000000000', 'completed', 'c', 4, '{"n": 1}', now(), now(), now() - i * interval '1 ms'
     FROM generate_series(1, ${count}) AS i`,
    `INSERT INTO saga_steps (saga_id, step_name, ordinal, id, status, output, executed_at)
     SELECT saga.id, step.name, step.ordinal, gen_random_uuid(), 'completed', '1', now()
     FROM saga_executions AS saga CROSS JOIN (VALUES ('a', 0), ('b', 1), ('c', 2)) AS step (name, ordinal)
     WHERE saga.ended_at IS NOT NULL`,
  ])
}

/** Sagas that sleep: alive, not due for a day. */
export async function fillRunning(url: string, count: number): Promise<void> {
  await inOne(url, [
    `INSERT INTO saga_executions (id, saga_type, definition, current_step, input, wake_at)
     SELECT gen_random_uuid(), 'bench', 'bench@1#claim', 'pause', '{"n": 1}', now() + interval '1 day' + i * interval '1 ms'
     FROM generate_series(1, ${count}) AS i`,
    `INSERT INTO saga_steps (saga_id, step_name, ordinal, id)
     SELECT id, 'pause', 0, gen_random_uuid() FROM saga_executions WHERE wake_at IS NOT NULL`,
  ])
}

async function inOne(url: string, texts: readonly string[]): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    for (const text of texts) await client.query(text)
  } finally {
    await client.end()
  }
}
