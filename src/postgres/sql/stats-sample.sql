-- An estimate of how many events {{condition}} has (ready or dead: both have an index by sequence), from 200 places spread
-- evenly over its numbers. At each the first 50 are looked at: were there fewer up to the next place, they are all of
-- them; else the rest is taken to be as close together as they are. $1 how many places, $2 how many at each. One less is
-- counted over the way to the last: the search ended at an event, and would seem to find too many.

WITH bounds AS (
  SELECT (SELECT sequence FROM {{outbox}} WHERE {{condition}} ORDER BY sequence LIMIT 1) AS low,
    (SELECT sequence FROM {{outbox}} WHERE {{condition}} ORDER BY sequence DESC LIMIT 1) AS high
), places AS (
  SELECT low + n * (high - low + 1) / $1::text::bigint AS start,
    low + (n + 1) * (high - low + 1) / $1::text::bigint AS finish
  FROM bounds, generate_series(0, $1::text::bigint - 1) AS n
)
SELECT round(sum(CASE WHEN seen.count < $2::text::int THEN seen.count
  ELSE (seen.count - 1)::numeric * (finish - start) / (seen.last - start) END))::text AS count
FROM places, LATERAL (
  SELECT count(*) AS count, max(sequence) AS last
  FROM (SELECT sequence FROM {{outbox}} WHERE {{condition}} AND sequence >= start AND sequence < finish
    ORDER BY sequence LIMIT $2::text::int) AS first
) AS seen
