-- Takes over a checkpoint. $1 name, $2 version, $3 log, $4 incarnation, $5 epoch, $6 where it begins.
-- Returns the checkpoint; no row: a newer epoch has it. One that is retired is returned as such and not touched.

WITH taken AS (
  INSERT INTO {{projections}} AS known (name, version, log, incarnation, epoch, position)
  VALUES ($1, $2::text::int, $3, $4, $5::text::bigint, $6::text::bigint)
  ON CONFLICT (name, version) DO UPDATE SET epoch = excluded.epoch
    WHERE known.epoch <= excluded.epoch AND known.retired_at IS NULL
  RETURNING *
)
SELECT {{checkpoint}} AS checkpoint, false AS retired FROM taken AS projection
UNION ALL
SELECT {{checkpoint}} AS checkpoint, true AS retired FROM {{projections}} AS projection
WHERE name = $1 AND version = $2::text::int AND retired_at IS NOT NULL
