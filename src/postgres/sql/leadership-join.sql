-- $1 member, $2 mode, $3 lease in ms. Runs behind the gate. Joins unless live members of another mode are there: then it
-- returns the one that lives longest, its mode, and for how many milliseconds more. One that holds a term lives, even
-- where it could not say so lately.

WITH owners AS (
  SELECT holder, max(expires_at) AS expires_at FROM {{terms}}
  WHERE shard >= 0 AND holder <> '' AND expires_at > clock_timestamp(){{within}} GROUP BY holder
), other AS (
  SELECT member AS holder, mode, GREATEST(expires_at, (SELECT owners.expires_at FROM owners WHERE holder = member)) AS until
  FROM {{members}} WHERE member <> $1 AND mode <> $2
    AND (expires_at > clock_timestamp() OR member IN (SELECT holder FROM owners)){{within}}
  ORDER BY until DESC LIMIT 1
), gone AS (
  DELETE FROM {{members}} WHERE expires_at < clock_timestamp() - interval '1 hour'
    AND member NOT IN (SELECT holder FROM owners){{within}}
), joined AS (
  INSERT INTO {{members}} ({{scope}}member, mode, expires_at)
  SELECT {{value}}$1, $2, clock_timestamp() + $3::text::float8 * interval '1 millisecond'
  WHERE NOT EXISTS (SELECT 1 FROM other)
  ON CONFLICT ({{scope}}member) DO UPDATE SET mode = excluded.mode, expires_at = excluded.expires_at
)
SELECT holder, mode, EXTRACT(EPOCH FROM until - clock_timestamp())::float8 * 1000 AS expires_in FROM other
