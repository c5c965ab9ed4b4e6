-- How many events are in which state, counted up to a bound through the small indexes. $1 the bound; $2 that of
-- the two parts for which the table is read too.
--
-- Each part is read in the order of its index: without that the planner may think a scan of the table cheaper, and the
-- few rows it looks for are at its end. `timers` and `blockers` are counts of whole indexes: when one has come to the
-- bound, the states in it were not all seen. Answers also the age of the oldest event that could go out, in seconds.

WITH timers AS MATERIALIZED (
  SELECT state FROM {{outbox}} WHERE state IN ('scheduled', 'retrying', 'leased')
  ORDER BY available_at, sequence LIMIT $2::text::int
), blockers AS MATERIALIZED (
  SELECT key, state FROM {{outbox}} WHERE key IS NOT NULL AND state IN ('retrying', 'dead', 'held')
  ORDER BY key, sequence LIMIT $2::text::int
)
SELECT
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'ready'
    ORDER BY sequence LIMIT $1::text::int) AS counted)::text AS ready,
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'dead'
    ORDER BY sequence LIMIT $1::text::int) AS counted)::text AS dead,
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'published'
    ORDER BY published_at LIMIT $1::text::int) AS counted)::text AS published,
  timed.*, blocked.*,
  EXTRACT(EPOCH FROM clock_timestamp() - LEAST(
    (SELECT created_at FROM {{outbox}} WHERE state = 'ready' ORDER BY sequence LIMIT 1),
    (SELECT created_at FROM {{outbox}} WHERE state IN ('scheduled', 'retrying', 'leased')
      AND available_at <= (SELECT clock_timestamp()) ORDER BY available_at, sequence LIMIT 1)
  ))::text AS oldest
FROM (
  SELECT count(*)::text AS timers, count(*) FILTER (WHERE state = 'scheduled')::text AS scheduled,
    count(*) FILTER (WHERE state = 'retrying')::text AS retrying, count(*) FILTER (WHERE state = 'leased')::text AS leased
  FROM timers
) AS timed, (
  SELECT count(*)::text AS blockers, count(*) FILTER (WHERE state = 'held')::text AS held,
    count(DISTINCT key) FILTER (WHERE state = 'held')::text AS keys
  FROM blockers
) AS blocked
