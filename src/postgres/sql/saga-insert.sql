-- Starts a saga: the execution and the intent of its first step.
-- $1 id, $2 type, $3 definition, $4 aggregate, $5 tenant, $6 input, $7 trace, $8 runner or NULL, $9 ms until it is due,
-- $10 current step, $11 steps as JSON. Returns one row; its id is NULL when there is one of that id already.

WITH saga AS (
  INSERT INTO {{sagas}} (id, saga_type, definition, aggregate_id, tenant_id, input, traceparent, runner, wake_at, current_step)
  VALUES ($1::text::uuid, $2, $3, $4, $5, $6::text::jsonb, $7, $8::text::uuid,
    clock_timestamp() + $9::text::float8 * interval '1 millisecond', $10)
  ON CONFLICT (id) DO NOTHING
  RETURNING id
), intents AS (
  INSERT INTO {{steps}} (saga_id, step_name, ordinal, id, sends)
  SELECT saga.id, step.step_name, step.ordinal, step.id, step.sends
  FROM saga, jsonb_to_recordset($11::text::jsonb) AS step (step_name text, ordinal int, id uuid, sends int)
)
SELECT (SELECT id::text FROM saga) AS id{{waking}}
