-- Held events of keys that nothing blocks any more, in order. $1 text of an array of keys, $2 how many of each key,
-- $3 text of a multirange of unsettled numbers, $4 how many in all. They stay held until they are settled, so that later
-- ones still wait.
--
-- For each key the first rows of the blocker index, up to the first that stops it. One that stops it counts though it is
-- unsettled. Each key is one probe of that index, whatever the statistics say: they hardly ever know of held rows.

SELECT {{columns}}, NULL
FROM unnest($1::text::text[]) AS open (name) CROSS JOIN LATERAL (
  SELECT first.*, bool_or(first.state <> 'held') OVER (ORDER BY first.sequence) AS stopped
  FROM (
    SELECT event.* FROM {{outbox}} event
    WHERE event.key = open.name AND event.key IS NOT NULL AND event.state IN ({{blockers}}){{shard}}
      AND (event.state <> 'held' OR NOT event.sequence <@ (SELECT $3::text::int8multirange))
    ORDER BY event.key, event.sequence LIMIT $2::text::int
  ) AS first
) AS free
WHERE NOT free.stopped
ORDER BY free.sequence LIMIT $4::text::int
