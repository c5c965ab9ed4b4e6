-- Keys of a projection that follows a broker: locked in the order of their names, so that two never wait for each other.
-- $1 name, $2 version, $3 keys. Returns how far each has come.

INSERT INTO {{keys}} AS known (name, version, key, position)
SELECT $1, $2::text::int, given.key, 0 FROM unnest($3::text::text[]) AS given(key) ORDER BY given.key COLLATE "C"
ON CONFLICT (name, version, key) DO UPDATE SET position = known.position
RETURNING key, position::text AS position
