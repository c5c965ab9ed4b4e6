-- What a claim picks, for lease-claim.sql, whose parameters it has. {{which}} leaves out some, or picks one: see claims.ts.

WITH fresh AS (
  SELECT event_id FROM {{outbox}}
  WHERE state = 'leased' AND available_at <= (SELECT clock_timestamp()) AND attempts = 0{{which}}
  ORDER BY available_at, sequence LIMIT $5::text::int FOR UPDATE SKIP LOCKED
), again AS (
  SELECT event_id FROM {{outbox}}
  WHERE state = 'leased' AND available_at <= (SELECT clock_timestamp()) AND attempts > 0{{which}}
  ORDER BY available_at, sequence
  LIMIT CASE WHEN EXISTS (SELECT 1 FROM fresh) THEN 0 ELSE LEAST(1, $5::text::int) END FOR UPDATE SKIP LOCKED
), expired AS (
  SELECT event_id FROM fresh UNION ALL SELECT event_id FROM again
), room AS (
  SELECT CASE WHEN EXISTS (SELECT 1 FROM expired) THEN 0 ELSE $1::text::int END AS free
), ready AS (
  SELECT event_id FROM {{outbox}} WHERE state = 'ready' AND sequence > $6::text::bigint{{which}} ORDER BY sequence
  LIMIT (SELECT free FROM room) FOR UPDATE SKIP LOCKED
), due_first AS (
  SELECT event_id, available_at FROM {{outbox}}
  WHERE state = 'scheduled' AND available_at <= (SELECT clock_timestamp()){{which}}
  ORDER BY available_at LIMIT (SELECT (free + 3) / 4 FROM room) FOR UPDATE SKIP LOCKED
), due_again AS (
  SELECT event_id, available_at FROM {{outbox}}
  WHERE state = 'retrying' AND available_at <= (SELECT clock_timestamp()){{which}}
  ORDER BY available_at LIMIT (SELECT (free + 3) / 4 FROM room) FOR UPDATE SKIP LOCKED
), due AS (
  SELECT event_id FROM (SELECT * FROM due_first UNION ALL SELECT * FROM due_again) AS both_states
  ORDER BY available_at LIMIT (SELECT (free + 3) / 4 FROM room)
), held AS (
  SELECT event_id FROM {{outbox}} WHERE key IS NOT NULL AND state = 'held'{{which}}
  LIMIT (SELECT (free + 3) / 4 FROM room) FOR UPDATE SKIP LOCKED
)
