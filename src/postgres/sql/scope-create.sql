-- Who works on what, version 1, for every scope but the relays of an outbox, which have tables of their own. A term is a
-- row with an epoch and an expiry; see leadership.ts.

CREATE TABLE IF NOT EXISTS {{terms}} (
  scope      text        NOT NULL,
  shard      int         NOT NULL,
  epoch      bigint      NOT NULL DEFAULT 0,
  holder     text        NOT NULL DEFAULT '',
  expires_at timestamptz NOT NULL DEFAULT '-infinity',
  note       text,
  PRIMARY KEY (scope, shard)
);

CREATE TABLE IF NOT EXISTS {{members}} (
  scope      text        NOT NULL,
  member     text        NOT NULL,
  mode       text        NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (scope, member)
);
