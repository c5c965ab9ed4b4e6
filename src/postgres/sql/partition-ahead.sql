-- Creates the partitions of this {{unit}} and of the {{ahead}} next ones, by the server's clock, in UTC. Run by
-- migrate() and by the cleaner; what is there already is left alone.
--
-- A table is made first and then attached: that lets writers go on, where CREATE … PARTITION OF would stop them.
-- Where events have gone to the default partition already, that time stays there; the cleaner removes them one by one.

DO $$
DECLARE
  start timestamptz;
  finish timestamptz;
  part text;
  taken boolean;
BEGIN
  FOR n IN 0..{{ahead}} LOOP
    start := (date_trunc('{{unit}}', clock_timestamp() AT TIME ZONE 'UTC') + n * interval '1 {{unit}}') AT TIME ZONE 'UTC';
    finish := (date_trunc('{{unit}}', clock_timestamp() AT TIME ZONE 'UTC') + (n + 1) * interval '1 {{unit}}') AT TIME ZONE 'UTC';
    part := '{{prefix}}' || quote_ident('{{table}}_p' || to_char(start AT TIME ZONE 'UTC', 'YYYYMMDD'));
    CONTINUE WHEN to_regclass(part) IS NOT NULL;
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM {{partition_default}} WHERE created_at >= %L AND created_at < %L)', start, finish)
      INTO taken;
    CONTINUE WHEN taken;
    EXECUTE format('CREATE TABLE %s (LIKE {{outbox}} INCLUDING ALL EXCLUDING IDENTITY)', part);
    EXECUTE format('ALTER TABLE %s SET ({{storage}})', part);
    EXECUTE format('ALTER TABLE %s ALTER COLUMN state SET STATISTICS 1000', part);
    EXECUTE format('ALTER TABLE {{outbox}} ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', part, start, finish);
  END LOOP;
END
$$;
