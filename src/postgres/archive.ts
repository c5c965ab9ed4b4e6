import type { RawMessage } from '../core/index.ts'
import type { Sql } from '../drivers/sql/sql.ts'
import { readArchiveFiles } from './archive-files.ts'
import type { StoredRow } from './columns.ts'
import type { OutboxNames } from './names.ts'
import { messageOfStored } from './row.ts'
import { sql } from './sql.generated.ts'

/** The archive table of an outbox. */
export interface ArchiveTable {
  readonly on: Sql
  readonly names: OutboxNames
}

const PAGE = 500

/**
 * The events of an archive, from its files (the folder, or one within it) or its table, in the order of their numbers
 * within a day, or over all. An event may come twice, where a crash came between writing and removing, or where it was
 * replayed: skip by id.
 */
export async function* readArchive(from: string | ArchiveTable): AsyncGenerator<RawMessage> {
  for await (const row of archivedRows(from)) yield messageOfStored(row)
}

/** The same with all that was kept beside the message. */
export function archivedRows(from: string | ArchiveTable): AsyncGenerator<StoredRow> {
  return typeof from === 'string' ? readArchiveFiles(from) : readArchiveTable(from)
}

async function* readArchiveTable({ on, names }: ArchiveTable): AsyncGenerator<StoredRow> {
  const text = names.fill(sql['archive-read'])
  for (let after: (string | null)[] = [null, null]; ; ) {
    const { rows } = await on.query(text, [String(PAGE), ...after])
    yield* rows as unknown as StoredRow[]
    if (rows.length < PAGE) return
    const { sequence, event_id } = rows.at(-1) as unknown as StoredRow
    after = [sequence, event_id]
  }
}
