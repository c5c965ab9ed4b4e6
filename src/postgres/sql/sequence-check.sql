-- How numbers are drawn: how many at once by each session, and in which steps. No row where it is not our sequence.

SELECT seqcache::text AS cache, seqincrement::text AS step, seqcycle AS cycles FROM pg_sequence
WHERE seqrelid = pg_get_serial_sequence('{{outbox}}', 'sequence')::regclass
