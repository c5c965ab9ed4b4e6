-- Removes everything outbox-create.sql made, events included.

DROP VIEW IF EXISTS {{state}};
DROP TABLE IF EXISTS {{audit}};
DROP TABLE IF EXISTS {{members}};
DROP TABLE IF EXISTS {{terms}};
DROP TABLE IF EXISTS {{outbox}};
