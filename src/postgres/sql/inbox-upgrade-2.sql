-- The inbox, version 2: a cleaner finds what is old by an index. The brin index of version 1 could not tell it: rows
-- that come in use the space of those that were removed, so that every range of pages holds old and new ones.
-- On a large inbox create the new index beforehand, CONCURRENTLY and under the same name: here writers wait for it.

CREATE INDEX IF NOT EXISTS {{inbox_time}} ON {{inbox}} (created_at);

DROP INDEX IF EXISTS {{inbox_created_index}};
