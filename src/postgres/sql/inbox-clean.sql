-- Forgets messages that were handled long ago.
-- $1 retention in milliseconds, $2 at most so many rows. Rows that another cleaner has in hand are left to it.
-- The clock is asked once: compared with row by row, no index could serve it.

DELETE FROM {{inbox}} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {{inbox}}
  WHERE created_at < (SELECT clock_timestamp()) - $1::double precision * interval '1 millisecond'
  LIMIT $2::int
  FOR UPDATE SKIP LOCKED
))
