-- $1 text of an array of event ids that were written to a file. Answers by its count how many were removed.

DELETE FROM {{outbox}} WHERE event_id = ANY ($1::text::uuid[]) AND state = 'published'
