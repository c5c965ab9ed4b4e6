-- Renews claims. $1 ids, $2 their runners, $3 the lease in ms. Returns the ids of those that are still theirs.
-- What somebody is writing is left out, and nobody can claim it meanwhile: a business transaction that has cancelled one saga
-- and stays open must not keep the claims of all others from being renewed.

WITH mine AS (
  SELECT saga.id FROM unnest($1::text::uuid[], $2::text::uuid[]) AS kept (id, runner)
  JOIN {{sagas}} AS saga ON saga.id = kept.id AND saga.runner = kept.runner
  FOR UPDATE OF saga SKIP LOCKED
)
UPDATE {{sagas}} AS saga SET wake_at = clock_timestamp() + $3::text::float8 * interval '1 millisecond'
FROM mine WHERE saga.id = mine.id AND saga.wake_at IS NOT NULL
RETURNING saga.id::text AS id
