-- $1 the lease's token, $2 text of an array of event ids: all of them are published. Fenced like lease-settle.sql.
--
-- `state || ''` keeps the timer index out of the plan: statistics hardly ever see a leased row, so the planner would read
-- all leased rows and compare each with each id, where the primary key finds every one at once.

UPDATE {{outbox}} SET state = 'published', published_at = clock_timestamp(), available_at = NULL, lease = NULL,
  locked_at = NULL, last_error = NULL
WHERE event_id = ANY ((SELECT $2::text::uuid[])::uuid[]) AND lease = $1::text::uuid AND state || '' = 'leased'
  AND available_at > clock_timestamp()
