-- Ready events beyond what was read so far. $1 the sequence read up to, $2 how many.
--
-- `blocked`: an earlier event of its key has failed or waits. The first EXISTS is asked once per scan; the second, per
-- row, only where there is any blocker at all. The order is by event.sequence: plain `sequence` would mean the text.

SELECT {{columns}},
  CASE WHEN key IS NOT NULL
    AND (SELECT EXISTS (SELECT 1 FROM {{outbox}} WHERE key IS NOT NULL AND state IN ({{blockers}})))
    AND EXISTS (SELECT 1 FROM {{outbox}} earlier
      WHERE earlier.key = event.key AND earlier.sequence < event.sequence AND earlier.state IN ({{blockers}}))
  THEN 't' END
FROM {{outbox}} event
WHERE state = 'ready' AND sequence > $1::text::bigint{{shard}}
ORDER BY event.sequence LIMIT $2::text::int
