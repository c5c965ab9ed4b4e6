-- How many events one index holds, by state, up to $1 of them. {{condition}} and {{order}} are those of the index; {{state}} is
-- the state itself where there is only one, so that the table need not be read.

SELECT state, count(*)::text AS count
FROM (SELECT {{state}} AS state FROM {{outbox}} WHERE {{condition}} ORDER BY {{order}} LIMIT $1::text::int) AS counted
GROUP BY 1
