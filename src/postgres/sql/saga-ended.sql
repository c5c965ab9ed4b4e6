-- $1 ids. Each that is there, with its type; the saga as JSON only where it has ended or is held: those who wait need no other.

SELECT saga.id::text AS id, saga.saga_type AS type,
       CASE WHEN saga.ended_at IS NOT NULL OR saga.held_reason IS NOT NULL THEN {{saga}} END AS saga
FROM {{sagas}} AS saga WHERE saga.id = ANY ($1::text::uuid[])
