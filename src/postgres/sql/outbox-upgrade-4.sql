-- The outbox, version 4: the index of timers begins with the state, so that each state is found, listed and counted by itself,
-- however many rows the others have. See decision 0241.
--
-- Reads the table once, and writers wait meanwhile. An index of that name that is there already is used.

CREATE INDEX IF NOT EXISTS {{outbox_timed}} ON {{outbox}} (state, available_at, sequence)
  WHERE state IN ('scheduled', 'retrying', 'leased');

DROP INDEX IF EXISTS {{timer_index}};
