-- Events of the log after a number, in order. $1 the number, $2 how many. Behind the columns of a scan: the mark of the
-- server, and up to which number the log was trimmed. At least one row, for these two.
--
-- Outbox and archive in one statement, so one snapshot: an event that is moved from one to the other meanwhile is seen
-- once. Each part is cut off first, so that both are read by their index and only what is given is turned into text. The
-- join keeps the order, which is checked where they are read: to sort the texts would cost a quarter of the statement.

SELECT {{columns}}, here.mark, here.trimmed
FROM {{log_here}} AS here LEFT JOIN LATERAL (
  (SELECT {{log_columns}} FROM {{outbox}} WHERE sequence > $1::text::bigint ORDER BY sequence LIMIT $2::text::int)
  UNION ALL
  (SELECT {{log_columns}} FROM {{archive}} WHERE sequence > $1::text::bigint ORDER BY sequence LIMIT $2::text::int)
  ORDER BY sequence LIMIT $2::text::int
) AS event ON true
