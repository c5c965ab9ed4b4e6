-- Where the log ends: the last number that can be seen, the mark of the server, up to which number it was trimmed, and its
-- incarnation. A look into each index.

SELECT GREATEST((SELECT max(sequence) FROM {{outbox}}), (SELECT max(sequence) FROM {{archive}}))::text,
  here.mark, here.trimmed, here.incarnation
FROM {{log_here}} AS here
