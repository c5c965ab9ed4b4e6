-- The inbox, version 1: what each subscriber has handled. A CloudEvent is identified by its source and id together.

CREATE TABLE IF NOT EXISTS {{inbox}} (
  subscriber text        NOT NULL,
  source     text        NOT NULL,
  message_id text        NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (subscriber, source, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX IF NOT EXISTS {{inbox_created}} ON {{inbox}} USING brin (created_at) WITH (pages_per_range = 16);
