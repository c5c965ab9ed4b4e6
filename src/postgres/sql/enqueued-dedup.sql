-- As enqueued.sql, for an outbox with a table of ids.

SELECT event_id::text AS event_id, sequence::text AS sequence FROM {{ids}} WHERE event_id = ANY ($1::text::uuid[])
