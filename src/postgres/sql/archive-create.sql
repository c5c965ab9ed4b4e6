-- Where the cleaner puts published events, when it is set to keep them in a table. An event that was replayed is there
-- once for each time it was published.

CREATE TABLE IF NOT EXISTS {{archive}} (LIKE {{outbox}});

ALTER TABLE {{archive}} ADD COLUMN IF NOT EXISTS archived_at timestamptz NOT NULL DEFAULT clock_timestamp();

CREATE INDEX IF NOT EXISTS {{outbox_archive_seq}} ON {{archive}} (sequence);

COMMENT ON TABLE {{archive}} IS 'Published events that the cleaner moved here from the outbox.';
