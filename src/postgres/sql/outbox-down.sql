-- Refuses to drop an outbox that still holds what is nowhere else: events that are not published, and, where there is an
-- archive, those that are not in it yet and those in its table. {{keep_pending}} and {{keep_archive}} are true, or false
-- where it was said by name that it may be lost.
--
-- The lock comes first: nothing is enqueued between the count and the drop.

DO $$
DECLARE
  pending bigint := 0;
  published bigint := 0;
  archived bigint := 0;
BEGIN
  IF to_regclass('{{outbox}}') IS NULL THEN RETURN; END IF;
  LOCK TABLE {{outbox}} IN ACCESS EXCLUSIVE MODE;
  IF {{keep_pending}} THEN
    SELECT count(*) INTO pending FROM (SELECT FROM {{outbox}} WHERE state <> 'published' LIMIT 1000000) AS counted;
  END IF;
  IF {{keep_archive}} AND to_regclass('{{versions}}') IS NOT NULL THEN
    IF EXISTS (SELECT 1 FROM {{versions}} WHERE name = '{{bare}}' AND options ->> 'archive' IN ('true', 'files')) THEN
      SELECT count(*) INTO published FROM (SELECT FROM {{outbox}} WHERE state = 'published' LIMIT 1000000) AS counted;
    END IF;
  END IF;
  IF {{keep_archive}} AND to_regclass('{{archive}}') IS NOT NULL THEN
    SELECT count(*) INTO archived FROM (SELECT FROM {{archive}} LIMIT 1000000) AS counted;
  END IF;
  IF pending + published + archived > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'WB001', MESSAGE = format(
      '{{name}} holds %s events that are not published, %s that are not archived and %s in its archive; nothing was dropped. Let them be published or keep them elsewhere, or say what may be lost: down({ discard: [''pending'', ''archive''] })',
      pending, published, archived);
  END IF;
END
$$;
