-- How many events are in which state, counted up to a bound through the small indexes, by nothing but them. $1 the bound; $2 that
-- of the two that hold several states; $3 that of published ones.
--
-- Each part is read in the order of its index: without that the planner may think a scan of the table cheaper, and the
-- few rows it looks for are at its end. `timers` and `blockers` are counts of whole indexes: when one has come to the
-- bound, the states in it were not all seen. Returns also for how many seconds the oldest event that could go out has
-- waited: since it was created, or since its time came; what a competing relay has, since that has claimed it.

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
    ORDER BY published_at LIMIT $3::text::int) AS counted)::text AS published,
  timed.*, blocked.*,
  EXTRACT(EPOCH FROM clock_timestamp() - LEAST(
    (SELECT GREATEST(created_at, available_at) FROM {{outbox}} WHERE state = 'ready' ORDER BY sequence LIMIT 1),
    (SELECT available_at FROM {{outbox}} WHERE state IN ('scheduled', 'retrying', 'leased')
      AND available_at <= (SELECT clock_timestamp()) ORDER BY available_at, sequence LIMIT 1),
    -- Read from the table, and only where there are any: an owner writes no leases.
    CASE WHEN EXISTS (SELECT FROM timers WHERE state = 'leased') THEN (SELECT min(locked_at) FROM (
      SELECT state, locked_at FROM {{outbox}} WHERE state IN ('scheduled', 'retrying', 'leased')
      ORDER BY available_at, sequence LIMIT $2::text::int) AS taken WHERE state = 'leased') END
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
