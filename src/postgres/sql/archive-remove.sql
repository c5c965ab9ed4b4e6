-- Text of arrays, one element for each event that was written to a file: $1 event ids, $2 times of creation. Both, since in
-- a table of partitions two rows may have one id, and only one of them is in the file. Its count is how many were removed.

DELETE FROM {{outbox}} event USING unnest($1::text::uuid[], $2::text::timestamptz[]) AS written (event_id, created_at)
WHERE event.event_id = written.event_id AND event.created_at = written.created_at AND event.state = 'published'
