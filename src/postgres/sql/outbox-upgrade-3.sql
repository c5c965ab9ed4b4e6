-- The outbox, version 3: what a row may be, and who is woken by a plain INSERT. See decision 0037.
--
-- 1. Rows that a relay could not find or settle are mended first, since the constraint below also judges updates of
--    rows that are there already. One pass over the table, which keeps nobody waiting.
-- 2. One constraint in place of two: the server parses every constraint anew for each statement, so that two small
--    ones cost an enqueue more than one. NOT VALID spares it a second pass, under a lock.
-- 3. `state` is given by all that Waybill itself writes. Who leaves it out gets the default, which tells an idle relay.
--    Its table is bound when it is created: no search_path, and no right but INSERT on the table, matters to a writer.
-- 4. With tenants, an index that tells one tenant's backlog from all that it has published.
--
-- The ALTER TABLE waits for transactions that have written and are still open, 10 s at most, and writers wait behind it.

UPDATE {{outbox}} SET
  attempts = GREATEST(attempts, 0),
  state = CASE WHEN state = 'held' AND key IS NULL THEN 'ready' ELSE state END,
  available_at = CASE WHEN state IN ('scheduled', 'retrying', 'leased') THEN COALESCE(available_at, clock_timestamp())
    ELSE available_at END,
  published_at = CASE WHEN state = 'published' THEN COALESCE(published_at, clock_timestamp()) ELSE published_at END,
  key = CASE WHEN octet_length(key) > {{longest_key}}
    THEN left(key, 200) || ' sha256:' || encode(sha256(convert_to(key, 'UTF8')), 'hex') ELSE key END
WHERE attempts < 0 OR octet_length(key) > {{longest_key}} OR (state = 'held' AND key IS NULL)
  OR (state IN ('scheduled', 'retrying', 'leased') AND available_at IS NULL)
  OR (state = 'published' AND published_at IS NULL);

DO $$
BEGIN
  IF to_regclass('{{tenant_index}}') IS NOT NULL THEN
    CREATE INDEX IF NOT EXISTS {{outbox_backlog}} ON {{outbox}} (tenant_id, state, sequence);
    DROP INDEX {{tenant_index}};
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION {{wake_function}}() RETURNS text LANGUAGE sql VOLATILE RETURN {{ready_and_wake}};

GRANT EXECUTE ON FUNCTION {{wake_function}}() TO PUBLIC;

ALTER TABLE {{outbox}}
  DROP CONSTRAINT IF EXISTS {{outbox_payload}},
  DROP CONSTRAINT IF EXISTS {{outbox_state}},
  DROP CONSTRAINT IF EXISTS {{outbox_row}},
  ADD CONSTRAINT {{outbox_row}} CHECK (
    (payload IS NULL) <> (payload_bytes IS NULL)
    AND attempts >= 0
    AND octet_length(key) <= {{longest_key}}
    AND (state = ANY ('{ready,published,dead}')
      OR state = ANY ('{scheduled,retrying,leased}') AND available_at IS NOT NULL
      OR state = 'held' AND key IS NOT NULL)
  ) NOT VALID,
  ALTER COLUMN state SET DEFAULT {{wake_function}}();

COMMENT ON FUNCTION {{wake_function}}() IS 'The default of state: ready. Also tells an idle relay, once the transaction has committed.';
COMMENT ON COLUMN {{outbox}}.state IS 'Leave it out of an INSERT: the default is ready, and wakes an idle relay. ready: may go out now. scheduled: not before available_at. retrying: failed, next try at available_at. leased: a relay has it until available_at. held: an earlier event of its key comes first. published: done. dead: kept for a person.';
