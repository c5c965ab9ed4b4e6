-- The condition that a filter makes. $1 text of an array of event ids, $2 tenant, $3 topic, $4 type, $5 key, $6 created at
-- or after, $7 created before; null stands for any. The planner sees the values, so what is null costs nothing.

($1::text IS NULL OR event.event_id = ANY ($1::text::uuid[]))
  AND ($2::text IS NULL OR event.tenant_id = $2::text)
  AND ($3::text IS NULL OR event.topic = $3::text)
  AND ($4::text IS NULL OR event.event_type = $4::text)
  AND ($5::text IS NULL OR event.key = $5::text)
  AND ($6::text IS NULL OR event.created_at >= $6::text::timestamptz)
  AND ($7::text IS NULL OR event.created_at < $7::text::timestamptz)
