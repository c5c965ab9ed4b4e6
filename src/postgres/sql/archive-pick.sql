-- Published events that are older than the retention, whole and locked, to be written to a file before they are removed
-- in the same transaction. $1 retention in ms, $2 how many at most, $3 how many bytes of payload at most (but one event).

WITH old AS (
  SELECT event_id, created_at, published_at,
    COALESCE(octet_length(payload::text), octet_length(payload_bytes)) AS size
  FROM {{outbox}}
  WHERE state = 'published' AND published_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED
), fitting AS (
  SELECT event_id, created_at FROM (
    SELECT event_id, created_at, size, sum(size) OVER (ORDER BY published_at, event_id) AS total FROM old
  ) AS summed WHERE total <= $3::text::bigint OR total = size
)
SELECT {{stored}} FROM {{outbox}} event JOIN fitting USING (event_id, created_at) ORDER BY event.sequence
