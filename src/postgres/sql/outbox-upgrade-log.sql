-- Only where an outbox is declared a log: with its archive it holds every event for good, in the order of its number.
-- {{unique}} is UNIQUE, but for a table of partitions, which cannot hold that.
--
-- 1. PostgreSQL itself refuses numbers given by hand, and sequences that let sessions draw numbers in advance: an INSERT
--    would use such a number long after others had been read past it.
-- 2. An index over all numbers. It costs every enqueue, and every settlement that is no HOT update (most are none).
-- 3. No row is `scheduled`: it would be in the log before its time.
-- 4. {{log}}: what belongs to the log as a whole. A table in use has lost events to its cleaner, and replays have given
--    others new numbers, so the log begins behind what was drawn before. The ALTER TABLE has waited for open writers.

DO $$
DECLARE
  given record;
BEGIN
  SELECT seqcache, seqincrement, seqcycle INTO given FROM pg_sequence
  WHERE seqrelid = pg_get_serial_sequence('{{outbox}}', 'sequence')::regclass;
  IF given.seqcache > 1 OR given.seqincrement < 1 OR given.seqcycle THEN
    RAISE EXCEPTION USING ERRCODE = 'WB002', MESSAGE = format(
      '{{name}} cannot be a log: its sequence has CACHE %s, INCREMENT %s%s, so a number may come to light after larger ones were read. ALTER SEQUENCE %s CACHE 1 INCREMENT 1 NO CYCLE, then migrate() again',
      given.seqcache, given.seqincrement, CASE WHEN given.seqcycle THEN ', CYCLE' ELSE '' END,
      pg_get_serial_sequence('{{outbox}}', 'sequence'));
  END IF;
END
$$;

ALTER TABLE {{outbox}}
  ALTER COLUMN sequence SET GENERATED ALWAYS,
  DROP CONSTRAINT IF EXISTS {{outbox_log_row}},
  ADD CONSTRAINT {{outbox_log_row}} CHECK (state <> 'scheduled') NOT VALID;

CREATE {{unique}} INDEX IF NOT EXISTS {{outbox_number}} ON {{outbox}} (sequence);

CREATE TABLE IF NOT EXISTS {{log}} (
  incarnation uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
  trimmed     bigint      NOT NULL,
  declared_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO {{log}} (trimmed)
SELECT COALESCE(pg_sequence_last_value(pg_get_serial_sequence('{{outbox}}', 'sequence')::regclass), 0)
WHERE NOT EXISTS (SELECT 1 FROM {{log}});

COMMENT ON TABLE {{log}} IS 'One row: {{name}} is a log. Events up to `trimmed` are gone, or are no part of it.';
COMMENT ON COLUMN {{outbox}}.sequence IS 'The place in the log, for good. Numbers are drawn before the commit, so a lower one may come to light later.';
COMMENT ON TABLE {{archive}} IS 'The older part of the log: published events that the cleaner moved here, and discarded ones. Read it with the outbox, in one statement.';
