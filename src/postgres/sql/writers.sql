-- The transactions that write to the outbox now, prepared ones too.

SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = '{{outbox}}'::regclass AND mode = 'RowExclusiveLock'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
