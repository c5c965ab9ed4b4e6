-- Writes down that a subscriber handles a message.
-- $1 subscriber, $2 source, $3 message id. Returns one row when it is new, none when it was handled before.
-- A transaction that has written the same and is still open is waited for: its rollback makes ours the new one.
-- Never by catching the violation of the primary key: that would have aborted the transaction already.

INSERT INTO {{inbox}} (subscriber, source, message_id) VALUES ($1, $2, $3)
ON CONFLICT DO NOTHING
RETURNING 1 AS received
