-- Milliseconds until the next event is due: scheduled, retried, or given back by the end of a lease. No row: none is.

SELECT GREATEST(0, EXTRACT(EPOCH FROM available_at - clock_timestamp()) * 1000)::bigint::text
FROM {{timed}} CROSS JOIN LATERAL (
  SELECT available_at FROM {{outbox}} event
  WHERE event.state = timed.name AND event.state IN ('scheduled', 'retrying', 'leased')
  ORDER BY available_at, sequence LIMIT 1
) AS first
ORDER BY available_at LIMIT 1
