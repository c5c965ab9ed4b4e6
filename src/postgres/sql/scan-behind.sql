-- Ready events that came to light behind the place read up to: committed late, given back, or re-armed.
-- $1 the place, $2 how many, $3 text of an array of sequences in hand.

SELECT {{columns}},
  CASE WHEN key IS NOT NULL
    AND (SELECT EXISTS (SELECT 1 FROM {{outbox}} WHERE key IS NOT NULL AND state IN ({{blockers}})))
    AND EXISTS (SELECT 1 FROM {{outbox}} earlier
      WHERE earlier.key = event.key AND earlier.sequence < event.sequence AND earlier.state IN ({{blockers}}))
  THEN 't' END
FROM {{outbox}} event
WHERE state = 'ready' AND sequence <= $1::text::bigint AND sequence NOT IN (SELECT unnest($3::text::bigint[])){{shard}}
ORDER BY event.sequence LIMIT $2::text::int
