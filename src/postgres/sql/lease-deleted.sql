-- As lease-published.sql, for an outbox whose events are removed once they are published.

DELETE FROM {{outbox}}
WHERE event_id = ANY ((SELECT $2::text::uuid[])::uuid[]) AND lease = $1::text::uuid AND state || '' = 'leased'
  AND available_at > clock_timestamp()
