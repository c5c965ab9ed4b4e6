-- The ids of events that were enqueued, for tables that cannot keep them: those that remove events once they are
-- published, and those in time partitions, where event_id alone cannot be unique. Each enqueue writes one row more.
-- A table that is in use already hands over the ids it has.

CREATE TABLE IF NOT EXISTS {{ids}} (
  event_id   uuid        NOT NULL PRIMARY KEY,
  sequence   bigint      NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX IF NOT EXISTS {{outbox_ids_time}} ON {{ids}} (created_at);

COMMENT ON TABLE {{ids}} IS 'Event ids that were enqueued within the retention, so that the same one again changes nothing.';

INSERT INTO {{ids}} (event_id, sequence, created_at)
SELECT event_id, sequence, created_at FROM {{outbox}} ON CONFLICT (event_id) DO NOTHING;
