import type { Mutation } from '../../scripts/mutations/mutation.ts'

const needs = ['postgres', 'postgres15']
const SQL = 'src/postgres/sql.generated.ts'

export const mutations: Mutation[] = [
  {
    name: 'two processes migrate at the same time',
    file: 'src/postgres/migrate.ts',
    find: "const LOCK = 'SELECT pg_advisory_xact_lock(1463897678, 0)'",
    replace: "const LOCK = 'SELECT 1'",
    test: 'test/postgres/migrate.test.ts',
    expects: 'many processes at once',
    needs,
  },
  {
    name: 'a table of an older version passes the check',
    file: 'src/postgres/migrate.ts',
    find: '  if (version < needed) throw oldSchema(text, version, needed)\n',
    replace: '',
    test: 'test/postgres/migrate.test.ts',
    expects: 'upgraded in place',
    needs,
  },
  {
    name: 'the cleaner removes whatever has a time of publishing, whatever its state',
    file: SQL,
    find: `DELETE FROM {{from}} WHERE state = 'published' AND ctid = ANY (ARRAY(
  SELECT ctid FROM {{from}}
  WHERE state = 'published' AND published_at <`,
    replace: `DELETE FROM {{from}} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {{from}}
  WHERE published_at <`,
    test: 'test/postgres/cleaner.test.ts',
    expects: 'and nothing else',
    needs,
  },
  {
    name: 'the cleaner waits for rows that others have locked',
    file: SQL,
    find: `  SELECT ctid FROM {{from}}
  WHERE state = 'published' AND published_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED`,
    replace: `  SELECT ctid FROM {{from}}
  WHERE state = 'published' AND published_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE`,
    test: 'test/postgres/cleaner.test.ts',
    expects: 'waits for nobody',
    needs,
  },
  {
    name: 'ids are forgotten while their events are still there',
    file: SQL,
    find: '    AND NOT EXISTS (SELECT 1 FROM {{outbox}} event WHERE event.event_id = known.event_id)\n',
    replace: '',
    test: 'test/postgres/cleaner.test.ts',
    expects: 'keeps the ids',
    needs,
  },
  {
    name: 'events are removed before they are in the file',
    file: 'src/postgres/cleaner.ts',
    find: `      await writeArchive(directory, table.text, rows as unknown as StoredRow[])
      const ids = textArray(rows.map((row) => row['event_id'] as string))
      return (await on.query(this.#names.fill(sql['archive-remove']), [ids])).count`,
    replace: `      const ids = textArray(rows.map((row) => row['event_id'] as string))
      const { count } = await on.query(this.#names.fill(sql['archive-remove']), [ids])
      void writeArchive(directory, table.text, rows as unknown as StoredRow[]).catch(() => {})
      return count`,
    test: 'test/postgres/archive.test.ts',
    expects: 'cannot be written is not removed',
    needs,
  },
  {
    name: 'a partition with dead events is dropped',
    file: 'src/postgres/partitions.ts',
    find: "row['dead'] === true ? 'dead' : undefined",
    replace: 'undefined',
    test: 'test/postgres/partitions.test.ts',
    expects: 'others are kept',
    needs,
  },
  {
    name: 're-armed events are ready at once, and no longer hold back their key',
    file: SQL,
    find: `SET state = 'retrying', attempts = 0, available_at = (SELECT clock_timestamp())`,
    replace: `SET state = 'ready', attempts = 0, available_at = NULL`,
    test: 'test/postgres/admin.test.ts',
    expects: 'keep their place',
    needs,
  },
  {
    name: 'replayed events are numbered in no order',
    file: SQL,
    find: 'FROM (SELECT * FROM picked ORDER BY sequence OFFSET 0) AS ordered',
    replace: 'FROM (SELECT * FROM picked ORDER BY md5(sequence::text) OFFSET 0) AS ordered',
    test: 'test/postgres/admin-relay.test.ts',
    expects: 'keep the order of their key',
    needs,
  },
  {
    name: 'more pending events are discarded than were expected',
    file: 'src/outbox/admin-checks.ts',
    find: 'if (found === expected) return',
    replace: 'if (found === expected || found === expected + 1) return',
    test: 'test/postgres/admin.test.ts',
    expects: 'exactly as many as were expected',
    needs,
  },
  {
    name: 'fewer pending events are discarded than were expected',
    file: 'src/outbox/admin-checks.ts',
    find: 'if (found === expected) return',
    replace: 'if (found <= expected) return',
    test: 'test/postgres/admin.test.ts',
    expects: 'exactly as many as were expected',
    needs,
  },
  {
    name: 'what a competing relay works on is discarded under its hands',
    file: 'src/postgres/admin-filter.ts',
    find: `const EXPIRED = ' AND event.available_at <= clock_timestamp()'`,
    replace: `const EXPIRED = ''`,
    test: 'test/postgres/admin.test.ts',
    expects: 'exactly as many as were expected',
    needs,
  },
  {
    name: 'the cleaner looks at everything that was published, to find nothing old',
    file: SQL,
    find: `  SELECT ctid FROM {{from}}
  WHERE state = 'published' AND published_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED`,
    replace: `  SELECT ctid FROM {{from}}
  WHERE state = 'published' AND published_at < clock_timestamp() - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED`,
    test: 'test/postgres/cleaner.test.ts',
    expects: 'only at what is old',
    needs,
  },
]
