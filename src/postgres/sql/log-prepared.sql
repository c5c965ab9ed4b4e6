-- The name of a prepared transaction, by the one under which it holds its locks ($1).

SELECT gid FROM pg_prepared_xacts JOIN pg_locks ON locktype = 'transactionid' AND transactionid = transaction
WHERE virtualtransaction = $1 LIMIT 1
