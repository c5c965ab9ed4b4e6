-- $1 text of an array of event ids. The sequences of those that were there already.

SELECT event_id::text AS event_id, sequence::text AS sequence FROM {{outbox}} WHERE event_id = ANY ($1::text::uuid[])
