-- $1–$7 the filter, $8 how many. Removes events of the state that {{condition}} names; returns how many.
--
-- {{condition}} leaves out what a competing relay has leased and works on. Keys that were held back are found open by the relay.

WITH picked AS (
  SELECT event.event_id, event.created_at FROM {{outbox}} event
  WHERE {{condition}} AND {{filter}}
  ORDER BY {{order}} LIMIT $8::text::int FOR UPDATE
), removed AS (
  DELETE FROM {{outbox}} event USING picked
  WHERE event.event_id = picked.event_id AND event.created_at = picked.created_at AND {{condition}}
  RETURNING 1
)
SELECT count(*)::text AS count FROM removed
