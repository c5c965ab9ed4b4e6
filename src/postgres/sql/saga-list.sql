-- $1 type or NULL, $2 aggregate or NULL, $3 statuses or NULL, $4 whether only those that wait for a person, $5 the id behind
-- which to go on or NULL, $6 how many. Sagas as JSON, newest first: their ids begin with the time.

SELECT {{saga}} AS saga FROM {{sagas}} AS saga
WHERE ($1::text IS NULL OR saga.saga_type = $1) AND ($2::text IS NULL OR saga.aggregate_id = $2)
  AND ($3::text IS NULL OR saga.status = ANY ($3::text::text[]))
  AND ($4::text <> 'true' OR saga.attention_at IS NOT NULL)
  AND ($5::text IS NULL OR saga.id < $5::text::uuid)
ORDER BY saga.id DESC LIMIT $6::text::int
