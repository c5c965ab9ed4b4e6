-- One decision about a saga: its state and the steps that changed, fenced by version and runner.
-- $1 id, $2 version, $3 runner or NULL (a person), $4 status, $5 current step, $6 held, $7 error,
-- $8 keep, release, leave or stay, $9 ms until it is due or NULL, $10 lease in ms, $11 whether a step got somewhere,
-- $12 whether it has ended, $13 whether it waits for a person, $14 steps as JSON.
-- Returns one row; its id is NULL when nothing was changed.
--
-- A lease is left alone while more than half of it is left: wake_at is indexed, and the update is HOT without it.

WITH saga AS (
  UPDATE {{sagas}} SET
    status = $4, current_step = $5, held_reason = $6, error_message = $7, version = version + 1,
    runner = CASE WHEN $8::text = 'release' THEN NULL ELSE runner END,
    wake_at = CASE
      WHEN $8::text = 'keep' THEN
        CASE WHEN wake_at > clock_timestamp() + $10::text::float8 * interval '0.5 millisecond' THEN wake_at
          ELSE clock_timestamp() + $10::text::float8 * interval '1 millisecond' END
      WHEN $8::text = 'stay' THEN wake_at
      WHEN $8::text = 'leave' AND runner IS NOT NULL AND wake_at IS NOT NULL THEN wake_at
      ELSE clock_timestamp() + $9::text::float8 * interval '1 millisecond' END,
    takeovers = CASE WHEN $11::text = 'true' THEN 0 ELSE takeovers END,
    updated_at = clock_timestamp(),
    ended_at = CASE WHEN $12::text = 'true' THEN COALESCE(ended_at, clock_timestamp()) END,
    attention_at = CASE WHEN $13::text = 'true' THEN COALESCE(attention_at, clock_timestamp()) END
  WHERE id = $1::text::uuid AND version = $2::text::int AND ($3::text IS NULL OR runner = $3::text::uuid)
  RETURNING id
), changed AS (
  INSERT INTO {{steps}} AS old
    (saga_id, step_name, ordinal, id, status, output, attempts, spent_ms, undos, sends, error_message, executed_at, compensated_at)
  SELECT saga.id, step.step_name, step.ordinal, step.id, step.status,
    CASE WHEN step.returned THEN COALESCE(step.output, 'null') END, step.attempts, step.spent_ms, step.undos, step.sends,
    step.error_message, CASE WHEN step.executed THEN clock_timestamp() END,
    CASE WHEN step.status = 'compensated' THEN clock_timestamp() END
  FROM saga, jsonb_to_recordset($14::text::jsonb) AS step (step_name text, ordinal int, id uuid, status text, output jsonb,
    attempts int, spent_ms bigint, undos int, sends int, error_message text, executed boolean, returned boolean)
  ON CONFLICT (saga_id, step_name) DO UPDATE SET
    status = excluded.status, output = excluded.output, attempts = excluded.attempts, spent_ms = excluded.spent_ms,
    undos = excluded.undos, sends = excluded.sends, error_message = excluded.error_message,
    executed_at = COALESCE(old.executed_at, excluded.executed_at),
    compensated_at = excluded.compensated_at
)
SELECT (SELECT id::text FROM saga) AS id{{waking}}
