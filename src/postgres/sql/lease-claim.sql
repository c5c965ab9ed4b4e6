-- $1 how many, $2 the lease's token, $3 its length in ms, $4 the most attempts.
--
-- Claims what is due, skipping what another relay is claiming: ready events in order, timers and leases that ran out,
-- and what an owner left held, since competing relays keep no order. A lease that ran out counts as an attempt, since
-- its holder may have died of the event; one without attempts left is dead. Answers the rows, the dead among them.

WITH ready AS (
  SELECT event_id FROM {{outbox}} WHERE state = 'ready' ORDER BY sequence LIMIT $1::text::int FOR UPDATE SKIP LOCKED
), due AS (
  SELECT event_id FROM {{outbox}}
  WHERE state IN ('scheduled', 'retrying', 'leased') AND available_at <= (SELECT clock_timestamp())
  ORDER BY available_at LIMIT GREATEST(1, $1::text::int / 4) FOR UPDATE SKIP LOCKED
), held AS (
  SELECT event_id FROM {{outbox}} WHERE key IS NOT NULL AND state = 'held'
  LIMIT GREATEST(1, $1::text::int / 4) FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE {{outbox}} event SET
    attempts = attempts + CASE WHEN state = 'leased' THEN 1 ELSE 0 END,
    state = CASE WHEN state = 'leased' AND attempts + 1 >= $4::text::int THEN 'dead' ELSE 'leased' END,
    last_error = CASE WHEN state = 'leased' THEN 'the relay that worked on it let its lease run out' ELSE last_error END,
    lease = $2::text::uuid,
    locked_at = clock_timestamp(),
    available_at = CASE WHEN state = 'leased' AND attempts + 1 >= $4::text::int THEN NULL
      ELSE clock_timestamp() + $3::text::float8 * interval '1 millisecond' END
  WHERE event_id IN (SELECT event_id FROM ready UNION ALL SELECT event_id FROM due UNION ALL SELECT event_id FROM held)
  RETURNING {{columns}}, sequence AS place
)
SELECT * FROM claimed ORDER BY place
