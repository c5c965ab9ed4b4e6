-- In the order of their numbers, which are not unique: several tables may have been archived into one, and numbers may
-- have begun anew. $1 how many, $2 and $3 sequence and event id to go on behind, or null.

SELECT {{stored}} FROM {{archive}} event
WHERE $2::text IS NULL OR (sequence, event_id) > ($2::text::bigint, $3::text::uuid)
ORDER BY event.sequence, event.event_id LIMIT $1::text::int
