-- $1 an event id. The whole row, as text.

SELECT {{stored}} FROM {{outbox}} event WHERE event_id = $1::text::uuid LIMIT 1
