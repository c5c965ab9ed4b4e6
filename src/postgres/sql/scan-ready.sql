-- Ready events in order, without those that are unsettled. $1 how many, $2 text of a multirange of unsettled numbers;
-- between which numbers, and without which keys, is said by places.ts.
--
-- One statement, so one snapshot: where a later event of a key can be seen, an earlier one that was committed before it
-- can be seen too, whatever the order in which their numbers were drawn and committed.
-- `blocked`: an earlier event of its key has failed or waits. The first subquery is asked once per scan; the second, per
-- row, only where there is any blocker at all (false and not NULL, behind which it would be asked all the same).
-- The order is by event.sequence: plain `sequence` would mean the text.
-- The multirange in a subquery is read from its text once; by itself it would be for every row.

SELECT {{columns}},
  CASE WHEN key IS NOT NULL
    AND COALESCE((SELECT true FROM {{outbox}} WHERE key IS NOT NULL AND state IN ({{blockers}})
      ORDER BY key, sequence LIMIT 1), false)
    AND EXISTS (SELECT 1 FROM {{outbox}} earlier
      WHERE earlier.key = event.key AND earlier.sequence < event.sequence AND earlier.state IN ({{blockers}}))
  THEN 't' END
FROM {{outbox}} event
WHERE state = 'ready' AND {{between}} AND NOT sequence <@ (SELECT $2::text::int8multirange){{shard}}{{without}}
ORDER BY event.sequence LIMIT $1::text::int
