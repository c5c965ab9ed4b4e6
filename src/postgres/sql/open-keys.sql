-- Keys with held events that nothing blocks any more, found by stepping from key to key through the blocker index.
-- $1 the key to begin with, $2 how many keys to look at. Returns each key looked at, and whether it is open. The last of
-- them is the first of the next step: an empty key is one too, so there is none to begin behind.

WITH RECURSIVE step AS (
  (SELECT key FROM {{outbox}}
    WHERE key >= $1::text AND key IS NOT NULL AND state IN ('retrying', 'dead', 'held') ORDER BY key LIMIT 1)
  UNION ALL
  SELECT (SELECT key FROM {{outbox}}
    WHERE key > step.key AND key IS NOT NULL AND state IN ('retrying', 'dead', 'held') ORDER BY key LIMIT 1)
  FROM step WHERE step.key IS NOT NULL
), looked AS (
  SELECT key FROM step WHERE key IS NOT NULL LIMIT $2::text::int
)
SELECT key, CASE WHEN head.state = 'held' THEN 't' END
FROM looked, LATERAL (
  SELECT state FROM {{outbox}} event
  WHERE event.key = looked.key AND event.key IS NOT NULL AND event.state IN ({{blockers}})
  ORDER BY event.key, event.sequence LIMIT 1
) head
