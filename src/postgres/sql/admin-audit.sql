-- $1 action, $2 by, $3 note, $4 filter (JSON), $5 how many events. Also wakes an idle relay, when this commits.

WITH noted AS (
  INSERT INTO {{audit}} (action, by, note, filter, count)
  VALUES ($1::text, $2::text, $3::text, $4::text::jsonb, $5::text::bigint) RETURNING id
)
SELECT id::text AS id, pg_notify('waybill_' || '{{outbox}}'::regclass::oid, '') FROM noted
