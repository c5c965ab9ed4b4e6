-- How many sagas of the definition $1 one index holds ({{condition}} is that of the index), up to $2 of them.

SELECT count(*)::text AS count FROM (
  SELECT FROM {{sagas}} AS saga WHERE definition = $1::text AND {{condition}} ORDER BY wake_at LIMIT $2::text::int
) AS counted
