-- $1 the sequence to go on behind, $2 how many.

SELECT {{stored}} FROM {{archive}} event WHERE sequence > $1::text::bigint ORDER BY sequence LIMIT $2::text::int
