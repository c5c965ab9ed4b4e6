-- $1 member, $2 shard, $3 lease in ms. Takes a shard that is free, expired or the member's own, and counts the epoch up.
-- Returns the new epoch and what the holder before left behind. Expiry is compared with clock_timestamp(), never
-- now(): a statement that waited for the row's lock must see the time after the wait. {{scope}}, {{value}} and {{within}}
-- tell scopes apart that share a table, here and in the other statements of leadership.ts.
--
-- The insert selects from `before`, so that it is read first: read with RETURNING it would skip the row, which this
-- statement has changed by then.

WITH before AS (
  SELECT shard, holder, note FROM {{terms}} WHERE shard = $2::text::int{{within}} FOR UPDATE
)
INSERT INTO {{terms}} AS term ({{scope}}shard, epoch, holder, expires_at)
SELECT {{value}}$2::text::int, 1, $1, clock_timestamp() + $3::text::float8 * interval '1 millisecond'
FROM (SELECT count(*) FROM before) AS first
ON CONFLICT ({{scope}}shard) DO UPDATE
  SET epoch = term.epoch + 1, holder = excluded.holder, note = NULL,
      expires_at = clock_timestamp() + $3::text::float8 * interval '1 millisecond'
  WHERE term.holder = '' OR term.holder = $1 OR term.expires_at <= clock_timestamp()
RETURNING epoch::text AS epoch,
  COALESCE((SELECT holder NOT IN ('', $1) FROM before), false) AS abandoned,
  (SELECT note::text FROM before) AS note
