-- Removes events up to the number $1 that were trimmed, at most $2. Run again until it changes nothing.

WITH here AS (
  DELETE FROM {{outbox}} event USING (
    SELECT event_id, created_at FROM {{outbox}} WHERE sequence <= $1::text::bigint AND state = 'published'
    ORDER BY sequence LIMIT $2::text::int FOR UPDATE SKIP LOCKED
  ) AS old
  WHERE event.event_id = old.event_id AND event.created_at = old.created_at AND event.state = 'published'
  RETURNING 1
), away AS (
  DELETE FROM {{archive}} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {{archive}} WHERE sequence <= $1::text::bigint ORDER BY sequence LIMIT $2::text::int FOR UPDATE SKIP LOCKED))
  RETURNING 1
)
SELECT ((SELECT count(*) FROM here) + (SELECT count(*) FROM away))::text AS count
