-- How many events of one state there are, up to $1 of them. {{condition}} and {{order}} are those of its index.
-- A plain count, of nothing: then not even the entries of the index need be unpacked.

SELECT count(*)::text AS seen
FROM (SELECT 1 FROM {{outbox}} WHERE {{condition}} ORDER BY {{order}} LIMIT $1::text::int) AS counted
