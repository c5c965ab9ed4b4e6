-- $1 how many, $2 the id to go on behind, or null. Newest first.

SELECT id::text AS id, to_json(at) #>> '{}' AS at, action, by, note, filter::text AS filter, count::text AS count
FROM {{audit}} WHERE $2::text IS NULL OR id < $2::text::bigint ORDER BY id DESC LIMIT $1::text::int
