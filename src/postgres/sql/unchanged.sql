-- Asked when a settling statement changed fewer rows than it was given, though the right to settle holds. $1 text of an
-- array of event ids, $2 of their numbers. Returns id, state and lease (if it has not run out) of those that are still
-- to be settled. An event that was replayed since has another number.

SELECT event_id::text, state, CASE WHEN available_at > clock_timestamp() THEN lease::text END
FROM {{outbox}}
WHERE event_id = ANY ((SELECT $1::text::uuid[])::uuid[]) AND sequence = ANY ((SELECT $2::text::bigint[])::bigint[])
  AND state || '' NOT IN ('published', 'dead')
