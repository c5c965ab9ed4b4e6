-- Events that somebody has marked as published by hand, and forgot the time: they would be kept for ever. They are kept
-- for the retention from now on. $1 how many at most. One look into the index where there are none.

UPDATE {{outbox}} event SET published_at = clock_timestamp()
FROM (SELECT event_id, created_at FROM {{outbox}} WHERE state = 'published' AND published_at IS NULL
  LIMIT $1::text::int FOR UPDATE SKIP LOCKED) AS undated
WHERE event.event_id = undated.event_id AND event.created_at = undated.created_at AND event.state = 'published'
