-- Events whose time has come: scheduled, retrying, or leased by a relay that let its lease run out.
-- $1 how many, $2 text of a multirange of unsettled numbers; without which keys is said by places.ts.
--
-- Each state is a range of the index, in the order of time: so of each the first are read, and the first of those taken.
-- The clock in a subquery is asked once, and so bounds the index scan; by itself it would be asked for every row that is
-- not due yet.

SELECT {{columns}},
  CASE WHEN key IS NOT NULL
    AND EXISTS (SELECT 1 FROM {{outbox}} earlier
      WHERE earlier.key = event.key AND earlier.sequence < event.sequence AND earlier.state IN ({{blockers}}))
  THEN 't' END
FROM {{timed}} CROSS JOIN LATERAL (
  SELECT event.* FROM {{outbox}} event
  WHERE event.state = timed.name AND event.state IN ('scheduled', 'retrying', 'leased')
    AND available_at <= (SELECT clock_timestamp())
    AND NOT sequence <@ (SELECT $2::text::int8multirange){{shard}}{{without}}
  ORDER BY event.available_at, event.sequence LIMIT $1::text::int
) AS event
ORDER BY event.available_at, event.sequence LIMIT $1::text::int
