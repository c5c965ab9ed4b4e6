-- Removes published events that are older than the retention. $1 retention in ms, $2 how many at most.
-- {{from}} the outbox, or its default partition: no table with partitions, where a ctid would mean several rows.
--
-- What another is working on (a cleaner, a replay) is left to it. The clock is asked once, in a SELECT of its own: a
-- volatile function could not be looked up in an index. By ctid, the planner cannot prefer to read all of a table.

DELETE FROM {{from}} WHERE state = 'published' AND ctid = ANY (ARRAY(
  SELECT ctid FROM {{from}}
  WHERE state = 'published' AND published_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED
))
