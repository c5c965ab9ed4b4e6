-- $1–$7 the filter, $8 how many. Dead events get all their attempts again; returns how many were changed.
--
-- They become retrying and are due now, all at the same time so that the timer index has them by sequence. Until they
-- are published they go on holding back later events of their key.

WITH picked AS (
  SELECT event.event_id, event.created_at FROM {{outbox}} event
  WHERE {{condition}} AND {{filter}} ORDER BY {{order}} LIMIT $8::text::int FOR UPDATE
), changed AS (
  UPDATE {{outbox}} event SET state = 'retrying', attempts = 0, available_at = (SELECT clock_timestamp())
  FROM picked
  WHERE event.event_id = picked.event_id AND event.created_at = picked.created_at AND event.state = 'dead'
  RETURNING 1
)
SELECT count(*)::text AS count FROM changed
