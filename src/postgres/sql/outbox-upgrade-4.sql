-- The outbox, version 4: the index of timers begins with the state, so that each state is found, listed and counted by itself,
-- however many rows the others have. See decision 0241.
--
-- Reads the table once, and writers wait meanwhile. An index that was created before is used, and then no lock is taken but that
-- of the DROP: whoever has read the table and writes to it next would be in a deadlock with two. What a CREATE INDEX
-- CONCURRENTLY has left that failed is not valid: no query may use it, so it is created anew. Twice, since the index of a
-- partitioned table takes over those of its partitions, also such ones. Something else of that name is an error.

DO $$
DECLARE
  usable boolean;
BEGIN
  FOR attempt IN 1..2 LOOP
    usable := (SELECT indisvalid FROM pg_index
      WHERE indrelid = '{{outbox}}'::regclass AND indexrelid = to_regclass('{{timed_index}}'));
    EXIT WHEN usable;
    IF NOT usable THEN DROP INDEX {{timed_index}}; END IF;
    CREATE INDEX {{outbox_timed}} ON {{outbox}} (state, available_at, sequence)
      WHERE state IN ('scheduled', 'retrying', 'leased');
  END LOOP;
END
$$;

DROP INDEX IF EXISTS {{timer_index}};
