-- $1 saga. What people did to it, as JSON, in order.

SELECT json_build_object('sagaId', saga_id, 'at', at, 'by', by, 'action', action, 'note', note)::text AS entry
FROM {{audit}} WHERE saga_id = $1::text::uuid ORDER BY at
