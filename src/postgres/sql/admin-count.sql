-- $1–$7 the filter, $8 the number at which to stop counting. In the order of the state's own index, as admin-list.sql.

SELECT count(*)::text AS count
FROM (SELECT 1 FROM {{outbox}} event WHERE {{condition}} AND {{filter}} ORDER BY {{order}} LIMIT $8::text::int) AS counted
