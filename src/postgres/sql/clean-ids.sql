-- Forgets event ids that are older than the retention, but for those of events that are still there: in a table of
-- partitions nothing else would notice the second one. $1 retention in ms, $2 how many at most.

DELETE FROM {{ids}} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {{ids}} known
  WHERE created_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
    AND NOT EXISTS (SELECT 1 FROM {{outbox}} event WHERE event.event_id = known.event_id)
  ORDER BY created_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED
))
