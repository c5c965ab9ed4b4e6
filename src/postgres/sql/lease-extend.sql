-- $1 the lease's token, $2 text of an array of event ids, $3 its length in ms. Passes over what somebody has locked: nobody
-- can claim that either, and the others must not lose their leases with it.

UPDATE {{outbox}} SET available_at = clock_timestamp() + $3::text::float8 * interval '1 millisecond'
WHERE lease = $1::text::uuid AND state || '' = 'leased' AND available_at > clock_timestamp()
  AND event_id IN (SELECT event_id FROM {{outbox}} WHERE event_id = ANY ((SELECT $2::text::uuid[])::uuid[])
    FOR NO KEY UPDATE SKIP LOCKED)
