-- Why a partition must stay: it holds events that are not published, or some that were published within the retention.
-- $1 retention in ms. Asks its small indexes only. held events always have a key. `published`: there are any at all,
-- which an archive must have first.

SELECT EXISTS (SELECT 1 FROM {{partition}} WHERE state = 'ready')
    OR EXISTS (SELECT 1 FROM {{partition}} WHERE state IN ('scheduled', 'retrying', 'leased'))
    OR EXISTS (SELECT 1 FROM {{partition}} WHERE state = 'held' AND key IS NOT NULL) AS pending,
  EXISTS (SELECT 1 FROM {{partition}} WHERE state = 'dead') AS dead,
  (SELECT true FROM {{partition}} WHERE state = 'published' ORDER BY published_at LIMIT 1) AS published,
  COALESCE((SELECT max(published_at) FROM {{partition}} WHERE state = 'published')
    >= clock_timestamp() - $1::text::float8 * interval '1 millisecond', false) AS recent
