-- Removes everything that the outbox consists of, events included. Partitions go with their table. The function goes
-- first: it and the table know each other.

DROP VIEW IF EXISTS {{state}};
ALTER TABLE IF EXISTS {{outbox}} ALTER COLUMN state DROP DEFAULT;
DROP FUNCTION IF EXISTS {{wake_function}}();
DROP TABLE IF EXISTS {{archive}};
DROP TABLE IF EXISTS {{log}};
DROP TABLE IF EXISTS {{ids}};
DROP TABLE IF EXISTS {{audit}};
DROP TABLE IF EXISTS {{members}};
DROP TABLE IF EXISTS {{terms}};
DROP TABLE IF EXISTS {{outbox}};
