-- Sagas and their steps, version 1. Names and words as in other people's saga tables; what is new beside them: the fence
-- (version and runner), one time column to be claimed by, and what an unknown outcome needs.
--
-- wake_at is NULL where nothing is due by itself: ended, or held while nobody has it. Each row that has one stands in one
-- of two small indexes. A progress write changes no indexed column, so it is HOT: updated_at is in none of them. Steps have no
-- foreign key: each statement writes both tables, and the check would lock and log the saga's row again for every step.

CREATE TABLE IF NOT EXISTS {{sagas}} (
  id            uuid        NOT NULL PRIMARY KEY,
  saga_type     text        NOT NULL,
  definition    text        NOT NULL,
  aggregate_id  text,
  tenant_id     text,
  status        text        NOT NULL DEFAULT 'running'
    CHECK (status IN ('running', 'compensating', 'completed', 'compensated', 'failed')),
  current_step  text,
  version       int         NOT NULL DEFAULT 1,
  input         jsonb       NOT NULL,
  runner        uuid,
  takeovers     int         NOT NULL DEFAULT 0,
  wake_at       timestamptz,
  held_reason   text,
  error_message text,
  traceparent   text,
  created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at      timestamptz,
  attention_at  timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX IF NOT EXISTS {{sagas_due}} ON {{sagas}} (definition, wake_at) WHERE wake_at IS NOT NULL AND runner IS NULL;
CREATE INDEX IF NOT EXISTS {{sagas_claimed}} ON {{sagas}} (definition, wake_at) WHERE wake_at IS NOT NULL AND runner IS NOT NULL;
CREATE INDEX IF NOT EXISTS {{sagas_undoing}} ON {{sagas}} (definition, wake_at) WHERE status = 'compensating' AND wake_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS {{sagas_aggregate}} ON {{sagas}} (saga_type, aggregate_id) WHERE aggregate_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS {{sagas_ended}} ON {{sagas}} (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS {{sagas_attention}} ON {{sagas}} (attention_at) WHERE attention_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS {{steps}} (
  saga_id        uuid        NOT NULL,
  step_name      text        NOT NULL,
  ordinal        int         NOT NULL,
  id             uuid        NOT NULL,
  status         text        NOT NULL DEFAULT 'pending'
    CHECK (status IN ('pending', 'unknown', 'completed', 'failed', 'compensating', 'compensated', 'compensation_failed')),
  output         jsonb,
  attempts       int         NOT NULL DEFAULT 0,
  spent_ms       bigint      NOT NULL DEFAULT 0,
  undos          int         NOT NULL DEFAULT 0,
  sends          int         NOT NULL DEFAULT 0,
  started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  executed_at    timestamptz,
  compensated_at timestamptz,
  error_message  text,
  PRIMARY KEY (saga_id, step_name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE IF NOT EXISTS {{audit}} (
  saga_id uuid        NOT NULL,
  at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  by      text        NOT NULL,
  action  text        NOT NULL,
  note    text        NOT NULL
);

CREATE INDEX IF NOT EXISTS {{sagas_audited}} ON {{audit}} (saga_id);
