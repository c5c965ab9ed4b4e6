-- For those who wait: $1 is JSON, [{"name", "version", "positions"}]. One row for each, in that order.

SELECT (SELECT {{checkpoint}} FROM {{projections}} AS projection
        WHERE name = asked.name AND version = asked.version AND retired_at IS NULL) AS checkpoint,
       (SELECT json_agg(json_build_object('position', parked.position::text, 'error', parked.error))::text
        FROM {{parked}} AS parked
        WHERE name = asked.name AND version = asked.version AND position = ANY (asked.positions)) AS parked
FROM ROWS FROM (jsonb_to_recordset($1::text::jsonb) AS (name text, version int, positions bigint[]))
  WITH ORDINALITY AS asked(name, version, positions, place)
ORDER BY place
