-- $1 shard, $2 epoch, $3 event id, $4 the most attempts. The relay before ended while this event was alone in flight:
-- it is charged, and dead when it has no attempts left. Returns the event's state, type, topic,
-- tenant and attempts.

UPDATE {{outbox}} SET
  attempts = attempts + 1,
  state = CASE WHEN attempts + 1 >= $4::text::int THEN 'dead' ELSE 'retrying' END,
  available_at = CASE WHEN attempts + 1 >= $4::text::int THEN NULL
    ELSE clock_timestamp() + LEAST(60, 2 ^ LEAST(attempts, 6)) * interval '1 second' END,
  last_error = 'the relay ended while this event was alone in flight'
WHERE event_id = $3::text::uuid AND state NOT IN ('published', 'dead')
  AND EXISTS (SELECT 1 FROM {{terms}} WHERE shard = $1::text::int AND epoch = $2::text::bigint)
RETURNING state, event_type, topic, NULLIF(tenant_id, '') AS tenant, attempts
