-- The fence alone: $1 name, $2 version, $3 epoch, $4 as $6 of projection-advance. No row: another has taken over.

SELECT set_config('idle_in_transaction_session_timeout', $4, true) FROM {{projections}}
WHERE name = $1 AND version = $2::text::int AND epoch = $3::text::bigint AND retired_at IS NULL FOR UPDATE
