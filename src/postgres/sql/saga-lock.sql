-- $1 id. Nobody else writes this saga until the transaction ends. Read it with the next statement: this one's snapshot may be
-- older than what it has waited for.

SELECT 1 AS locked FROM {{sagas}} WHERE id = $1::text::uuid FOR UPDATE
