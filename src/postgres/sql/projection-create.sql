-- Projections, version 1: how far each has come, what is parked, keys of those that follow a broker, and what people did.
--
-- {{projections}}: position and epoch are the fence: an owner moves the row from the position it knows, under its own
-- epoch, in the transaction of the changes. Moved with every batch, and in no index but its primary key, so it is HOT.
-- {{parked}}: the first of a key has been tried (next_at), those behind it wait (next_at is NULL). The event is kept whole:
-- the log may be trimmed, and a broker does not give it again.

CREATE TABLE IF NOT EXISTS {{projections}} (
  name        text        NOT NULL,
  version     int         NOT NULL,
  log         text        NOT NULL,
  incarnation text        NOT NULL,
  position    bigint      NOT NULL,
  epoch       bigint      NOT NULL,
  problem     text,
  built_at    timestamptz,
  updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  retired_at  timestamptz,
  PRIMARY KEY (name, version)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE IF NOT EXISTS {{parked}} (
  name      text        NOT NULL,
  version   int         NOT NULL,
  position  bigint      NOT NULL,
  key       text,
  type      text        NOT NULL,
  message   text,
  attempts  int         NOT NULL DEFAULT 0,
  error     text,
  parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  next_at   timestamptz,
  PRIMARY KEY (name, version, position)
);

CREATE INDEX IF NOT EXISTS {{parked_key}} ON {{parked}} (name, version, key, position);

CREATE TABLE IF NOT EXISTS {{keys}} (
  name     text   NOT NULL,
  version  int    NOT NULL,
  key      text   NOT NULL,
  position bigint NOT NULL,
  PRIMARY KEY (name, version, key)
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS {{audit}} (
  id        bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  name      text        NOT NULL,
  version   int         NOT NULL,
  action    text        NOT NULL,
  by        text        NOT NULL,
  note      text        NOT NULL,
  positions bigint[]    NOT NULL
);
