-- Removes everything that the outbox consists of, events included. Partitions go with their table.

DROP VIEW IF EXISTS {{state}};
DROP TABLE IF EXISTS {{archive}};
DROP TABLE IF EXISTS {{ids}};
DROP TABLE IF EXISTS {{audit}};
DROP TABLE IF EXISTS {{members}};
DROP TABLE IF EXISTS {{terms}};
DROP TABLE IF EXISTS {{outbox}};
