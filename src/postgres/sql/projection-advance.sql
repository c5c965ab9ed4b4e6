-- Fence and checkpoint in one: $1 name, $2 version, $3 epoch, $4 from, $5 to, $7 the id of the event there, or NULL. No row:
-- another has taken over.
-- The row stays locked until the commit, so a zombie that waits here finds the epoch of whoever came after it. An owner that
-- is suspended with the row locked would keep everybody out: the server ends its transaction after $6 milliseconds.

UPDATE {{projections}} SET position = $5::text::bigint, event_position = $5::text::bigint, event_id = $7,
  updated_at = clock_timestamp(), problem = NULL
WHERE name = $1 AND version = $2::text::int AND epoch = $3::text::bigint AND position = $4::text::bigint AND retired_at IS NULL
RETURNING set_config('idle_in_transaction_session_timeout', $6, true)
