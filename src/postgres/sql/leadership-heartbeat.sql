-- $1 member, $2 mode, $3 lease in ms. Changes one row while the member still lives in this mode; else none: see join.

UPDATE {{members}} SET expires_at = clock_timestamp() + $3::text::float8 * interval '1 millisecond'
WHERE member = $1 AND mode = $2 AND expires_at > clock_timestamp(){{within}}
