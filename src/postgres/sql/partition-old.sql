-- Partitions that ended before the retention. $1 retention in ms. Returns their names, quoted, the oldest first.

SELECT quote_ident(namespace.nspname) || '.' || quote_ident(class.relname) AS partition
FROM pg_inherits JOIN pg_class class ON class.oid = inhrelid JOIN pg_namespace namespace ON namespace.oid = relnamespace,
  LATERAL (SELECT substring(pg_get_expr(class.relpartbound, class.oid) FROM $$TO \('(.*)'\)$$)::timestamptz AS ended) AS bound
WHERE inhparent = '{{outbox}}'::regclass
  AND ended < clock_timestamp() - $1::text::float8 * interval '1 millisecond'
ORDER BY ended
