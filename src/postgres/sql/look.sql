-- Whether there is anything to do: asked by an idle relay, so it must cost next to nothing.
-- $1 text of a multirange of sequences in hand, $2 the number to begin behind. Answers whether an event is ready, the
-- milliseconds until the next timer (null: none), and whether anything blocks a key.

SELECT
  CASE WHEN EXISTS (SELECT 1 FROM {{outbox}} event
    WHERE state = 'ready' AND sequence > $2::text::bigint
      AND NOT sequence <@ (SELECT $1::text::int8multirange){{shard}}) THEN 't' END,
  (SELECT GREATEST(0, EXTRACT(EPOCH FROM available_at - clock_timestamp()) * 1000)::bigint::text FROM {{outbox}} event
    WHERE state IN ('scheduled', 'retrying', 'leased') AND NOT sequence <@ (SELECT $1::text::int8multirange){{shard}}
    ORDER BY available_at LIMIT 1),
  CASE WHEN EXISTS (SELECT 1 FROM {{outbox}} WHERE key IS NOT NULL AND state IN ({{blockers}})) THEN 't' END
