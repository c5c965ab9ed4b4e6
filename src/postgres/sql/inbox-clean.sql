-- Forgets messages that were handled long ago, the oldest first.
-- $1 retention in milliseconds, $2 at most so many rows. Rows that another cleaner has locked are left to it.
-- The clock is asked once: compared with row by row, no index could serve it. In the order of the index, which is read
-- no further than to the first row that is kept.

DELETE FROM {{inbox}} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {{inbox}}
  WHERE created_at < (SELECT clock_timestamp()) - $1::double precision * interval '1 millisecond'
  ORDER BY created_at LIMIT $2::int
  FOR UPDATE SKIP LOCKED
))
