-- $1 ms. How many sagas of each definition have been due for so long; of ten thousand at most.

SELECT definition, count(*)::text AS count FROM (
  (SELECT definition FROM {{sagas}} AS saga
   WHERE wake_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond' AND runner IS NULL
     AND held_reason IS NULL LIMIT 10000)
  UNION ALL
  (SELECT definition FROM {{sagas}} AS saga
   WHERE wake_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond' AND runner IS NOT NULL
     AND held_reason IS NULL LIMIT 10000)
) AS overdue GROUP BY definition
