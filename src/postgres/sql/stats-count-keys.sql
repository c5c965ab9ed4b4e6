-- How many events one index holds, up to $1 of them, and of how many keys they are. {{condition}} and {{order}} are those of the
-- index, which begins with the key: those of one key come together, and nothing is sorted or hashed.

SELECT COALESCE(sum(held), 0)::text AS seen, count(*)::text AS keys
FROM (
  SELECT count(*) AS held
  FROM (SELECT key FROM {{outbox}} WHERE {{condition}} ORDER BY {{order}} LIMIT $1::text::int) AS counted
  GROUP BY key
) AS keys
