-- $1 member, $2 mode, $3 lease in ms. Runs behind the gate. Joins unless live members of another mode are there;
-- answers their mode, or null when joined. One that holds a term lives, even where it could not say so lately.

WITH owners AS (
  SELECT holder FROM {{terms}} WHERE shard >= 0 AND holder <> '' AND expires_at > clock_timestamp()
), other AS (
  SELECT mode FROM {{members}} WHERE member <> $1 AND mode <> $2
    AND (expires_at > clock_timestamp() OR member IN (SELECT holder FROM owners)) LIMIT 1
), gone AS (
  DELETE FROM {{members}} WHERE expires_at < clock_timestamp() - interval '1 hour'
    AND member NOT IN (SELECT holder FROM owners)
), joined AS (
  INSERT INTO {{members}} (member, mode, expires_at)
  SELECT $1, $2, clock_timestamp() + $3::text::float8 * interval '1 millisecond'
  WHERE NOT EXISTS (SELECT 1 FROM other)
  ON CONFLICT (member) DO UPDATE SET mode = excluded.mode, expires_at = excluded.expires_at
)
SELECT (SELECT mode FROM other) AS other
