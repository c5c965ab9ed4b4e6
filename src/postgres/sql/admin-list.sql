-- Events of one state, without payloads. $1–$7 the filter, $8 how many, $9 … the place to go on behind: {{behind}}.
-- {{condition}} names the state and {{order}} the columns of its own index, so that no page needs a long scan or a sort.

SELECT event.event_id::text AS event_id, event.sequence::text AS sequence, event.state, event.tenant_id, event.topic,
  event.key, event.event_type, event.event_version::text AS event_version, event.attempts::text AS attempts,
  event.last_error, to_json(event.created_at) #>> '{}' AS created_at, to_json(event.available_at) #>> '{}' AS available_at,
  to_json(event.published_at) #>> '{}' AS published_at, {{place}} AS place
FROM {{outbox}} event
WHERE {{condition}} AND {{filter}}{{behind}}
ORDER BY {{order}} LIMIT $8::text::int
