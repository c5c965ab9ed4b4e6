-- Writes down what a person did. $1 saga, $2 by whom, $3 what, $4 why.

INSERT INTO {{audit}} (saga_id, by, action, note) VALUES ($1::text::uuid, $2, $3, $4)
