-- How many rows there are, and how many of each state, as far as the server knows without looking: it counts inserts and
-- deletes as they are committed, from the last vacuum on. After a crash those counts are gone, and the size of the table
-- has to do. States are as of the last ANALYZE, for the rows there were then. Returns one row for each state that is common, and one with no state.
-- `least`: so many of a state there are surely, had every row that changed since then left it. `most`: as many entries as the
-- index of ready or of dead rows has room for, at 20 bytes each.

WITH leaves AS (
  SELECT '{{outbox}}'::regclass AS relid UNION SELECT relid FROM pg_partition_tree('{{outbox}}'::regclass)
), parts AS (
  SELECT namespace.nspname, class.relname, class.reltuples,
    CASE WHEN class.reltuples <= 0 OR class.relpages = 0
      OR COALESCE(live.last_vacuum, live.last_autovacuum, live.last_analyze, live.last_autoanalyze) IS NOT NULL
    THEN live.n_live_tup
    ELSE class.reltuples / class.relpages * pg_relation_size(class.oid) / current_setting('block_size')::int END AS count,
    CASE WHEN current_setting('track_counts')::boolean AND COALESCE(live.last_analyze, live.last_autoanalyze) IS NOT NULL
    THEN live.n_mod_since_analyze END AS changed
  FROM leaves JOIN pg_class class ON class.oid = leaves.relid AND class.relkind = 'r'
  JOIN pg_namespace namespace ON namespace.oid = class.relnamespace
  LEFT JOIN pg_stat_all_tables live ON live.relid = class.oid
)
SELECT NULL AS state, round(sum(count))::text AS count, NULL AS least, NULL AS most FROM parts
UNION ALL
SELECT common.state, round(sum(reltuples * common.frequency))::text,
  round(sum(GREATEST(0, reltuples * common.frequency - changed)))::text, NULL
FROM parts JOIN pg_stats ON schemaname = nspname AND tablename = relname AND attname = 'state',
  unnest(most_common_vals::text::text[], most_common_freqs) AS common (state, frequency)
GROUP BY common.state
UNION ALL
SELECT held.state, NULL, NULL, round(sum(pg_relation_size(indexrelid)) / 20)::text
FROM leaves JOIN pg_index ON indrelid = relid JOIN (VALUES ('ready', '(state = ''ready''::text)'), ('dead', '(state = ''dead''::text)'))
  AS held (state, condition) ON pg_get_expr(indpred, indrelid) = condition
GROUP BY held.state
