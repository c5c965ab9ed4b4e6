-- Events of the log after a number, in order. $1 the number, $2 how many. Behind the columns of a scan: the mark of the
-- server, up to which number the log was trimmed, and in the first row the id of the event at $1, if there is one. At least
-- one row, for these.
--
-- Outbox and archive in one statement, so one snapshot: an event that is moved from one to the other meanwhile is seen
-- once. Each part is cut off first, so that both are read by their index and only what is given is turned into text. The
-- join keeps the order, which is checked where they are read: to sort the texts would cost a quarter of the statement.

SELECT {{columns}}, here.mark, here.trimmed, CASE WHEN row_number() OVER () = 1 THEN (
    SELECT event_id::text FROM {{outbox}} WHERE sequence = $1::text::bigint
    UNION ALL
    SELECT event_id::text FROM {{archive}} WHERE sequence = $1::text::bigint
    LIMIT 1
  ) END
FROM {{log_here}} AS here LEFT JOIN LATERAL (
  (SELECT {{log_columns}} FROM {{outbox}} WHERE sequence > $1::text::bigint ORDER BY sequence LIMIT $2::text::int)
  UNION ALL
  (SELECT {{log_columns}} FROM {{archive}} WHERE sequence > $1::text::bigint ORDER BY sequence LIMIT $2::text::int)
  ORDER BY sequence LIMIT $2::text::int
) AS event ON true
