-- How far these keys have come now. $1 name, $2 version, $3 keys, $4 positions. They are locked.

UPDATE {{keys}} AS known SET position = moved.position
FROM unnest($3::text::text[], $4::text::bigint[]) AS moved(key, position)
WHERE known.name = $1 AND known.version = $2::text::int AND known.key = moved.key AND known.position < moved.position
