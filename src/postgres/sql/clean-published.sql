-- Removes published events that are older than the retention. $1 retention in ms, $2 how many at most.
-- {{from}} the outbox, or its default partition. What another has in hand (a cleaner, a replay) is left to it.

WITH old AS (
  SELECT event_id, created_at FROM {{from}}
  WHERE state = 'published' AND published_at < clock_timestamp() - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED
)
DELETE FROM {{from}} event USING old
WHERE event.event_id = old.event_id AND event.created_at = old.created_at AND event.state = 'published'
