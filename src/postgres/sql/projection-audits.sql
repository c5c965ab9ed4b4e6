-- What people did to a projection, newest first. $1 name, $2 version.

SELECT json_build_object('at', at, 'name', name, 'version', version, 'action', action, 'by', by, 'note', note,
                         'positions', positions::text[])::text AS entry
FROM {{audit}} WHERE name = $1 AND version = $2::text::int ORDER BY id DESC LIMIT 1000
