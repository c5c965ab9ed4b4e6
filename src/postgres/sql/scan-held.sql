-- Held events of keys that nothing blocks any more, in order. $1 text of an array of keys, $2 how many,
-- $3 text of a multirange of sequences in hand. They stay held until they are settled, so that later ones still wait.

SELECT {{columns}}, NULL
FROM {{outbox}} event
WHERE key = ANY ($1::text::text[]) AND state = 'held' AND NOT sequence <@ (SELECT $3::text::int8multirange){{shard}}
  AND NOT EXISTS (SELECT 1 FROM {{outbox}} earlier
    WHERE earlier.key = event.key AND earlier.sequence < event.sequence AND earlier.state IN ({{stoppers}}))
ORDER BY event.sequence LIMIT $2::text::int
