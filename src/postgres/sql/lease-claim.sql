-- $1 how many, $2 the lease's token, $3 its length in ms, $4 the most attempts, $5 how many of those whose lease ran out,
-- $6 the number ready events are looked for behind: a hint, since the left of the index is full of what was claimed before.
--
-- Claims what is due, skipping what another relay is claiming: ready events in order, timers, and what an owner left
-- held, since competing relays keep no order.
--
-- A lease that ran out counts as an attempt, since its holder may have died of the event; one without attempts left is
-- dead. Such events are claimed apart, with nothing else: a few that ran out for the first time, or else one alone, so
-- that one that kills its relays takes no others with it. Returns the rows, in no order, the dead among them; and with each row
-- whether its lease had run out, and whether there are more like that. {{pick}} is lease-pick.sql.

{{pick}}
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
    WHERE other.state = 'leased' AND other.available_at <= (SELECT clock_timestamp()){{which}})) THEN 't' END
