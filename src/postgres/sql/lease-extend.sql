-- $1 the lease's token, $2 text of an array of event ids, $3 its length in ms.

UPDATE {{outbox}} SET available_at = clock_timestamp() + $3::text::float8 * interval '1 millisecond'
WHERE event_id = ANY ((SELECT $2::text::uuid[])::uuid[]) AND lease = $1::text::uuid AND state || '' = 'leased'
  AND available_at > clock_timestamp()
