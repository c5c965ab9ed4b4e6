-- $1 id. One saga as JSON, or no row.

SELECT {{saga}} AS saga FROM {{sagas}} AS saga WHERE saga.id = $1::text::uuid
