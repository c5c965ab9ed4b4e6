-- Removes the barrier of participants.

DROP FUNCTION IF EXISTS {{function}}(text, text, jsonb);
DROP TABLE IF EXISTS {{barriers}};
