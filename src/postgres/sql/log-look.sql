-- Who may write to the outbox now, and which numbers were drawn before. $1 a number. Returns the first number behind $1 that
-- can be seen; the last that was drawn; the transactions that may write, prepared ones too, as `name pid` parted by commas;
-- the mark of the server; and how numbers are drawn: how many at once by each session, in which steps, whether in a circle.
--
-- Whoever has drawn a number has held this lock since before, and lets it go when the commit can be seen. So the last number
-- must be read before the locks: what LATERAL refers to is computed first. It is the last that was drawn, committed or not:
-- to wait for its writer from then on is sooner than from the commit on. A role that may not look at the sequence gets
-- the last that can be seen.

SELECT drawn.first, drawn.last::text, writing.names, here.mark, drawn.seqcache::text, drawn.seqincrement::text, drawn.seqcycle::text
FROM {{log_here}} AS here CROSS JOIN (
  SELECT LEAST((SELECT min(sequence) FROM {{outbox}} WHERE sequence > $1::text::bigint),
      (SELECT min(sequence) FROM {{archive}} WHERE sequence > $1::text::bigint))::text AS first,
    CASE WHEN has_sequence_privilege(seqrelid, 'USAGE, SELECT') THEN pg_sequence_last_value(seqrelid)
      ELSE GREATEST((SELECT max(sequence) FROM {{outbox}}), (SELECT max(sequence) FROM {{archive}})) END AS last,
    seqcache, seqincrement, seqcycle
  FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence('{{outbox}}', 'sequence')::regclass
  OFFSET 0
) AS drawn CROSS JOIN LATERAL (
  SELECT string_agg(DISTINCT virtualtransaction || ' ' || COALESCE(pid::text, ''), ',') AS names FROM pg_locks
  WHERE drawn.last IS NOT NULL AND locktype = 'relation' AND relation = '{{outbox}}'::regclass
    AND mode = 'RowExclusiveLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS writing
