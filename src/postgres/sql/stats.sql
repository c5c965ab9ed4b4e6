-- How many events are in which state, counted up to a bound through the small indexes, by nothing but them. $1 the bound; $2 that
-- of events that wait, which is lower: there are more kinds of them, and they change more often; $3 that of published ones.
--
-- Each part is read in the order of its index: without that the planner may think a scan of the table cheaper, and the
-- few rows it looks for are at its end. `blockers` is a count of a whole index: when it has come to the
-- bound, the states in it were not all seen. Returns also for how many seconds the oldest event that could go out has
-- waited: since it was created, or since its time came; what a competing relay has, since that has claimed it.

WITH blockers AS MATERIALIZED (
  SELECT key, state FROM {{outbox}} WHERE key IS NOT NULL AND state IN ('retrying', 'dead', 'held')
  ORDER BY key, sequence LIMIT $2::text::int
)
SELECT
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'ready'
    ORDER BY sequence LIMIT $1::text::int) AS counted)::text AS ready,
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'dead'
    ORDER BY sequence LIMIT $1::text::int) AS counted)::text AS dead,
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'scheduled'
    ORDER BY available_at, sequence LIMIT $2::text::int) AS counted)::text AS scheduled,
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'retrying'
    ORDER BY available_at, sequence LIMIT $2::text::int) AS counted)::text AS retrying,
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'leased'
    ORDER BY available_at, sequence LIMIT $2::text::int) AS counted)::text AS leased,
  (SELECT count(*) FROM (SELECT 1 FROM {{outbox}} WHERE state = 'published'
    ORDER BY published_at LIMIT $3::text::int) AS counted)::text AS published,
  blocked.*,
  EXTRACT(EPOCH FROM clock_timestamp() - LEAST(
    (SELECT GREATEST(created_at, available_at) FROM {{outbox}} WHERE state = 'ready' ORDER BY sequence LIMIT 1),
    (SELECT available_at FROM {{outbox}} WHERE state = 'scheduled' AND available_at <= (SELECT clock_timestamp())
      ORDER BY available_at, sequence LIMIT 1),
    (SELECT available_at FROM {{outbox}} WHERE state = 'retrying' AND available_at <= (SELECT clock_timestamp())
      ORDER BY available_at, sequence LIMIT 1),
    (SELECT min(locked_at) FROM (SELECT locked_at FROM {{outbox}} WHERE state = 'leased'
      ORDER BY available_at, sequence LIMIT $2::text::int) AS taken)
  ))::text AS oldest
FROM (
  SELECT count(*)::text AS blockers, count(*) FILTER (WHERE state = 'held')::text AS held,
    count(DISTINCT key) FILTER (WHERE state = 'held')::text AS keys
  FROM blockers
) AS blocked
