-- $1–$7 the filter, $8 how many. Published events become ready again under their own ids; returns how many.
--
-- They draw new numbers in the order of their old ones: so events of one key keep their order, and all of them come
-- behind what is pending now, whose first delivery should not wait for what has been delivered before.

WITH picked AS (
  SELECT event.event_id, event.created_at, event.sequence FROM {{outbox}} event
  WHERE event.state = 'published' AND {{filter}} LIMIT $8::text::int FOR UPDATE
), numbered AS (
  SELECT event_id, created_at, nextval(pg_get_serial_sequence('{{outbox}}', 'sequence')) AS sequence
  FROM (SELECT * FROM picked ORDER BY sequence OFFSET 0) AS ordered
), changed AS (
  UPDATE {{outbox}} event SET state = 'ready', sequence = numbered.sequence, attempts = 0, published_at = NULL,
    available_at = NULL, last_error = NULL
  FROM numbered
  WHERE event.event_id = numbered.event_id AND event.created_at = numbered.created_at AND event.state = 'published'
  RETURNING 1
)
SELECT count(*)::text AS count FROM changed
