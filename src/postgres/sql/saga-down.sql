-- Refuses to drop sagas that have not ended, or that wait for a person. {{keep_pending}} is true, or false where it was
-- said by name that they may be lost. The lock comes first: none is started between the count and the drop.

DO $$
DECLARE
  alive bigint := 0;
BEGIN
  IF to_regclass('{{sagas}}') IS NULL OR NOT {{keep_pending}} THEN RETURN; END IF;
  LOCK TABLE {{sagas}} IN ACCESS EXCLUSIVE MODE;
  SELECT count(*) INTO alive FROM (SELECT FROM {{sagas}} WHERE ended_at IS NULL OR attention_at IS NOT NULL LIMIT 1000000) AS counted;
  IF alive > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'WB001', MESSAGE = format(
      '{{name}} holds %s sagas that have not ended or wait for a person; nothing was dropped. Let them end, or say that they may be lost: down({ discard: ''pending'' })',
      alive);
  END IF;
END
$$;
