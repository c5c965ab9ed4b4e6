-- $1 retention in ms, $2 how many at most. Removes sagas that ended so long ago, with their steps and audit.

WITH old AS (
  SELECT id FROM {{sagas}} AS saga
  WHERE ended_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond' AND attention_at IS NULL
  ORDER BY ended_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED
), audits AS (
  DELETE FROM {{audit}} WHERE saga_id IN (SELECT id FROM old)
), steps AS (
  DELETE FROM {{steps}} WHERE saga_id IN (SELECT id FROM old)
)
DELETE FROM {{sagas}} WHERE id IN (SELECT id FROM old)
