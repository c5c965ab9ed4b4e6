-- The barrier of participants in sagas, version 1: what was run and what was undone for the key of a step.
--
-- {{function}}(key, operation, output): call it in the transaction of the work.
--   before the work  operation 'run' or 'undo'. go: do it. ran: the work of this key was done here. output: when it is not
--                    to be done, what was stored the last time, so that the saga gets its reply again.
--   after the work   the same with an output that is not NULL: stores it.
-- An undo without a run leaves a tombstone: go, and not ran. A run after its undo is refused: not go, no output.
-- Two transactions at one key wait for each other.

CREATE TABLE IF NOT EXISTS {{barriers}} (
  key         text        NOT NULL PRIMARY KEY,
  ran_at      timestamptz,
  output      jsonb,
  undone_at   timestamptz,
  undo_output jsonb,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 80);

CREATE INDEX IF NOT EXISTS {{barriers_created}} ON {{barriers}} (created_at);

CREATE OR REPLACE FUNCTION {{function}}(
  key text, operation text, INOUT output jsonb DEFAULT NULL, OUT go boolean, OUT ran boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  entry {{barriers}}%ROWTYPE;
BEGIN
  IF $1 IS NULL OR $1 = '' OR $2 IS NULL OR $2 NOT IN ('run', 'undo') THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = '{{name}}: give the key of the step, and ''run'' or ''undo''';
  END IF;
  IF $3 IS NOT NULL THEN
    UPDATE {{barriers}} AS barrier SET
      output = CASE WHEN $2 = 'run' THEN $3 ELSE barrier.output END,
      undo_output = CASE WHEN $2 = 'undo' THEN $3 ELSE barrier.undo_output END
    WHERE barrier.key = $1 AND CASE WHEN $2 = 'run' THEN barrier.ran_at ELSE barrier.undone_at END IS NOT NULL;
    IF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = '{{name}}: call it before the work too, in the same transaction';
    END IF;
    go := false;
    ran := true;
    RETURN;
  END IF;
  INSERT INTO {{barriers}} (key, ran_at, undone_at)
  VALUES ($1, CASE WHEN $2 = 'run' THEN clock_timestamp() END, CASE WHEN $2 = 'undo' THEN clock_timestamp() END)
  ON CONFLICT DO NOTHING;
  IF FOUND THEN
    go := true;
    ran := false;
    RETURN;
  END IF;
  SELECT barrier.* INTO entry FROM {{barriers}} AS barrier WHERE barrier.key = $1 FOR UPDATE;
  ran := entry.ran_at IS NOT NULL;
  go := $2 = 'undo' AND entry.undone_at IS NULL;
  IF go THEN
    UPDATE {{barriers}} AS barrier SET undone_at = clock_timestamp() WHERE barrier.key = $1;
  ELSIF $2 = 'undo' THEN
    output := entry.undo_output;
  ELSIF entry.undone_at IS NULL THEN
    output := entry.output;
  END IF;
END
$$;
