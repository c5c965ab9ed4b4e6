-- Whether there is anything to do: asked by an idle relay, so it must cost next to nothing.
-- $1 text of a multirange of unsettled numbers, $2 the number to begin behind. Returns whether an event is ready, the
-- milliseconds until the next timer (null: none), and whether anything blocks a key. Each part is read in the order of its
-- index: without that the planner may think a scan of the table cheaper.

SELECT
  (SELECT 't' FROM {{outbox}} event
    WHERE state = 'ready' AND sequence > $2::text::bigint
      AND NOT sequence <@ (SELECT $1::text::int8multirange){{shard}}
    ORDER BY sequence LIMIT 1),
  (SELECT GREATEST(0, ceil(EXTRACT(EPOCH FROM available_at - clock_timestamp()) * 1000))::bigint::text
    FROM {{timed}} CROSS JOIN LATERAL (
      SELECT available_at FROM {{outbox}} event
      WHERE event.state = timed.name AND event.state IN ('scheduled', 'retrying', 'leased')
        AND NOT sequence <@ (SELECT $1::text::int8multirange){{shard}}
      ORDER BY available_at, sequence LIMIT 1
    ) AS first
    ORDER BY available_at LIMIT 1),
  (SELECT 't' FROM {{outbox}} WHERE key IS NOT NULL AND state IN ({{blockers}})
    ORDER BY key, sequence LIMIT 1)
