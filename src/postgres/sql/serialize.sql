-- $1 text of an array of keys, $2 how many buckets they are hashed into. Takes the locks in the order of the buckets, so
-- that two transactions with several keys cannot wait for each other. A statement of its own: beside the insert, the
-- number could be drawn before the lock is taken.

SELECT count(pg_advisory_xact_lock(1463897677, bucket)) FROM (
  SELECT DISTINCT ((hashtextextended('{{outbox}}' || key, 0) & 2147483647) % $2::text::int)::int AS bucket
  FROM unnest($1::text::text[]) AS keys (key) ORDER BY bucket
) AS buckets
