import { WaybillError } from '../core/index.ts'
import { type Sql, textArray } from '../drivers/sql/sql.ts'
import type { OutboxFilter } from '../outbox/admin.ts'
import { refusedByLog } from '../store/log.ts'
import { stateSql } from './admin-filter.ts'
import { readArchiveFiles } from './archive-files.ts'
import type { ArchiveTarget } from './cleaner.ts'
import { STORED, type StoredName, type StoredRow } from './columns.ts'
import { recorded } from './migrate.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

export interface Replay {
  readonly asNew: boolean
  readonly limit: number
  readonly filter: OutboxFilter
  /** Where archived events are looked for too. */
  readonly archive: ArchiveTarget | undefined
}

/** Rows of one statement, and of how many bytes of payload at most. */
const STAGED_ROWS = 500
const STAGED_BYTES = 8 * 1024 * 1024

/** What was archived before version 3 may have a longer one. */
const KEY = `CASE WHEN octet_length(key) > {{longest_key}}
    THEN left(key, 200) || ' sha256:' || encode(sha256(convert_to(key, 'UTF8')), 'hex') ELSE key END`
const REMEMBER = `, remembered AS (
  INSERT INTO {{ids}} (event_id, sequence) SELECT event_id, sequence FROM copied ON CONFLICT (event_id) DO NOTHING
)`
const HERE = `SELECT event.* FROM {{outbox}} event WHERE event.state = 'published' AND {{filter}}`

/** Sends published events again. Returns how many match, at most one more than the limit. */
export async function replay(
  on: Sql,
  names: OutboxNames,
  values: readonly (string | null)[],
  what: Replay,
): Promise<number> {
  const { options } = await recorded(on, names.table)
  const remember = options['dedup'] === true ? REMEMBER : ''
  if (options['log'] === true) {
    if (what.asNew) throw refusedByLog(names.table.text, 'asNew')
    const parts = { remember, away: String(what.archive !== undefined) }
    return counted(on, filled(names, 'admin-replay-log', parts), values, what.limit)
  }
  const archived = await archivedTable(on, names, options, what)
  const parts: Record<string, string> = {
    archived: archived ?? '',
    history: what.asNew ? historySql(archived) : '',
    remember,
    key: KEY,
  }
  const file = what.asNew ? 'admin-replay-new' : archived === undefined ? 'admin-replay' : 'admin-replay-archive'
  return counted(on, filled(names, file, parts), values, what.limit)
}

function filled(names: OutboxNames, file: ReplayFile, parts: Readonly<Record<string, string>>): string {
  const text = sql[file].replace(/\{\{(\w+)\}\}/g, (all, name: string) => parts[name] ?? all)
  return names.fill(stateSql(text, 'published').replaceAll('{{archived}}', parts['archived'] ?? ''))
}

type ReplayFile = 'admin-replay' | 'admin-replay-new' | 'admin-replay-archive' | 'admin-replay-log'

async function counted(on: Sql, text: string, values: readonly (string | null)[], limit: number): Promise<number> {
  return Number((await on.query(text, [...values, String(limit + 1)])).rows[0]!['count'])
}

function historySql(archived: string | undefined): string {
  if (archived === undefined) return HERE
  const named = STAGED.map((name) => `event.${name}`).join(', ')
  return `${HERE.replace('event.*', named)} UNION ALL (SELECT DISTINCT ON (event.event_id) ${named} FROM ${archived} event
    WHERE {{filter}} AND NOT EXISTS (SELECT 1 FROM {{outbox}} there WHERE there.event_id = event.event_id)
    ORDER BY event.event_id, event.sequence DESC)`
}

async function archivedTable(
  on: Sql,
  names: OutboxNames,
  options: Record<string, unknown>,
  { archive, filter, limit }: Replay,
): Promise<string | undefined> {
  if (archive === undefined) return undefined
  if (typeof archive === 'object') return stage(on, names, archive.directory, filter, limit)
  if (archive === 'table' && options['archive'] === true) return names.table.companion('archive')
  const text = `replay: ${names.table.text} has no archive to read; give the outbox the archive that its cleaner has`
  throw new WaybillError('INVALID_OPTION', text)
}

/** What matches in the files, in a temporary table that goes with the transaction. */
async function stage(
  on: Sql,
  names: OutboxNames,
  directory: string,
  filter: OutboxFilter,
  limit: number,
): Promise<string> {
  const staged = 'pg_temp.waybill_replay'
  await on.query(names.fill('CREATE TEMPORARY TABLE waybill_replay (LIKE {{outbox}}) ON COMMIT DROP'))
  const insert = sql['replay-stage'].replace('{{staged}}', staged)
  const matches = matchesStored(filter)
  const seen = new Set<string>()
  let rows: StoredRow[] = []
  let bytes = 0
  const flush = async () => {
    if (rows.length > 0) await on.query(insert, columnsOf(rows))
    rows = []
    bytes = 0
  }
  for await (const row of readArchiveFiles(directory, { table: names.table.text, since: filter.since })) {
    if (!matches(row)) continue
    seen.add(row.event_id)
    rows.push(row)
    bytes += (row.payload ?? row.payload_bytes ?? '').length
    if (rows.length === STAGED_ROWS || bytes > STAGED_BYTES) await flush()
    if (seen.size > limit) break
  }
  await flush()
  return staged
}

/** The same as admin-filter.sql. */
function matchesStored(filter: OutboxFilter): (row: StoredRow) => boolean {
  const { eventIds, tenant, topic, type, key, since, until } = filter
  const ids = eventIds === undefined ? undefined : new Set(eventIds.map((id) => id.toLowerCase()))
  return (row) =>
    (ids === undefined || ids.has(row.event_id)) &&
    (tenant === undefined || row.tenant_id === tenant) &&
    (topic === undefined || row.topic === topic) &&
    (type === undefined || row.event_type === type) &&
    (key === undefined || row.key === key) &&
    (since === undefined || new Date(row.created_at) >= since) &&
    (until === undefined || new Date(row.created_at) < until)
}

/** What a replayed event begins anew with. */
const PROGRESS: readonly StoredName[] = ['state', 'available_at', 'published_at', 'attempts', 'last_error']

/** The parameters of replay-stage.sql, in their order. */
export const STAGED = STORED.filter((name) => !PROGRESS.includes(name))

function columnsOf(rows: readonly StoredRow[]): string[] {
  return STAGED.map((column) => textArray(rows.map((row) => row[column])))
}
