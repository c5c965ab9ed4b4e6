-- $1 shard, $2 epoch, $3 text of an array of event ids: all of them are published.
--
-- Found by their ids: two rows can have the same number after a restore, setval or TRUNCATE … RESTART IDENTITY.
-- The fence locks the term's row for the length of the statement: one that waits on a takeover finds, when it goes on,
-- that the epoch has passed, and changes nothing. Returns whether the term still holds, and how many it changed.
-- `state || ''` keeps the ready index out of the plan: the primary key finds every one at once. The array in a subquery is
-- read from its text once; by itself it may be for every row.

WITH term AS (
  SELECT 1 FROM {{terms}}
  WHERE shard = $1::text::int AND epoch = $2::text::bigint AND expires_at > clock_timestamp() FOR SHARE
), changed AS (
  UPDATE {{outbox}} SET state = 'published', published_at = clock_timestamp(), available_at = NULL, lease = NULL,
    locked_at = NULL, last_error = NULL
  WHERE event_id = ANY ((SELECT $3::text::uuid[])::uuid[]) AND state || '' = 'ready' AND EXISTS (SELECT 1 FROM term)
  RETURNING 1
)
SELECT (SELECT count(*) FROM term)::text, (SELECT count(*) FROM changed)::text
