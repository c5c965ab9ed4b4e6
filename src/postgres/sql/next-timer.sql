-- Milliseconds until the next timer is due; no row when there is none.

SELECT GREATEST(0, EXTRACT(EPOCH FROM available_at - clock_timestamp()) * 1000)::int::text
FROM {{outbox}} WHERE state IN ('scheduled', 'retrying', 'leased') ORDER BY available_at LIMIT 1
