-- It was applied. $1 name, $2 version, $3 position. No row: somebody else has removed it.

DELETE FROM {{parked}} WHERE name = $1 AND version = $2::text::int AND position = $3::text::bigint
