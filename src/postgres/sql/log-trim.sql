-- Says that the log begins behind $1, before anything is removed: who reads below gets an error, and not half. Returns
-- how many events up to there are not published, which must be none, and up to which number it was trimmed before.

WITH pending AS (
  SELECT 1 FROM {{outbox}} WHERE sequence <= $1::text::bigint AND state <> 'published' LIMIT 1000
), marked AS (
  UPDATE {{log}} SET trimmed = GREATEST(trimmed, $1::text::bigint) WHERE NOT EXISTS (SELECT 1 FROM pending)
)
SELECT (SELECT count(*) FROM pending)::text AS pending, trimmed::text AS before FROM {{log}}
