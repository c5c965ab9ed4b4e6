-- $1 text of an array of event ids. For an outbox whose events are removed once they are published.

DELETE FROM {{outbox}} WHERE event_id = ANY ((SELECT $1::text::uuid[])::uuid[]) AND state = 'published'
