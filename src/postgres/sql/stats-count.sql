-- How many events one index holds, up to $1 of them. {{condition}} and {{order}} are those of the index. {{column}} is `state` where
-- {{counts}} tells several states apart, and 1 where there is only one: then not even the index need be unpacked.
-- Plain counts, no GROUP BY: to hash a text for each row takes longer than to read it.

SELECT count(*)::text AS seen{{counts}}
FROM (SELECT {{column}} FROM {{outbox}} WHERE {{condition}} ORDER BY {{order}} LIMIT $1::text::int) AS counted
