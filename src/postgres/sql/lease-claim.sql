-- $1 how many, $2 the lease's token, $3 its length in ms, $4 the most attempts, $5 how many of those whose lease ran out,
-- $6 the number ready events are looked for behind: a hint, since the left of the index is full of what was claimed before.
--
-- Claims what is due, skipping what another relay is claiming: ready events in order, timers, and what an owner left
-- held, since competing relays keep no order.
--
-- A lease that ran out counts as an attempt, since its holder may have died of the event; one without attempts left is
-- dead. Such events are claimed apart, with nothing else: a few that ran out for the first time, or else one alone, so
-- that one that kills its relays takes no others with it. Answers the rows, in no order, the dead among them; and with each row
-- whether its lease had run out, and whether there are more like that.

WITH fresh AS (
  SELECT event_id FROM {{outbox}}
  WHERE state = 'leased' AND available_at <= (SELECT clock_timestamp()) AND attempts = 0
  ORDER BY available_at, sequence LIMIT $5::text::int FOR UPDATE SKIP LOCKED
), again AS (
  SELECT event_id FROM {{outbox}}
  WHERE state = 'leased' AND available_at <= (SELECT clock_timestamp()) AND attempts > 0
  ORDER BY available_at, sequence
  LIMIT CASE WHEN EXISTS (SELECT 1 FROM fresh) THEN 0 ELSE LEAST(1, $5::text::int) END FOR UPDATE SKIP LOCKED
), expired AS (
  SELECT event_id FROM fresh UNION ALL SELECT event_id FROM again
), room AS (
  SELECT CASE WHEN EXISTS (SELECT 1 FROM expired) THEN 0 ELSE $1::text::int END AS free
), ready AS (
  SELECT event_id FROM {{outbox}} WHERE state = 'ready' AND sequence > $6::text::bigint ORDER BY sequence
  LIMIT (SELECT free FROM room) FOR UPDATE SKIP LOCKED
), due AS (
  SELECT event_id FROM {{outbox}}
  WHERE state IN ('scheduled', 'retrying') AND available_at <= (SELECT clock_timestamp())
  ORDER BY available_at LIMIT (SELECT (free + 3) / 4 FROM room) FOR UPDATE SKIP LOCKED
), held AS (
  SELECT event_id FROM {{outbox}} WHERE key IS NOT NULL AND state = 'held'
  LIMIT (SELECT (free + 3) / 4 FROM room) FOR UPDATE SKIP LOCKED
)
UPDATE {{outbox}} event SET
  attempts = attempts + CASE WHEN state = 'leased' THEN 1 ELSE 0 END,
  state = CASE WHEN state = 'leased' AND attempts + 1 >= $4::text::int THEN 'dead' ELSE 'leased' END,
  last_error = CASE WHEN state = 'leased' THEN 'the relay that worked on it let its lease run out' ELSE last_error END,
  lease = $2::text::uuid,
  locked_at = clock_timestamp(),
  available_at = CASE WHEN state = 'leased' AND attempts + 1 >= $4::text::int THEN NULL
    ELSE clock_timestamp() + $3::text::float8 * interval '1 millisecond' END
WHERE event_id IN (SELECT event_id FROM expired UNION ALL SELECT event_id FROM ready
  UNION ALL SELECT event_id FROM due UNION ALL SELECT event_id FROM held)
RETURNING {{columns}}, NULL,
  CASE WHEN event_id IN (SELECT event_id FROM expired) THEN 't' END,
  CASE WHEN (SELECT EXISTS (SELECT 1 FROM {{outbox}} other
    WHERE other.state = 'leased' AND other.available_at <= (SELECT clock_timestamp()))) THEN 't' END
