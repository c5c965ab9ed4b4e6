import { checkOptions, type OptionNames, oneOf } from '../core/index.ts'
import type { TableName } from '../drivers/sql/identifiers.ts'
import { refusedByLog } from '../store/log.ts'
import { InboxNames } from './inbox.ts'
import { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** A table, with its companions, as migrations see it. */
export interface TableSchema {
  readonly table: TableName
  /** SQL that brings it from version 0 to 1, from 1 to 2, and so on. A version goes on working with the code before. */
  readonly versions: readonly string[]
  /** SQL for each option that was chosen. Run once, when it is chosen first. */
  readonly chosen: readonly { readonly option: string; readonly sql: string }[]
  /** What was chosen, as it is written down with the version. */
  readonly options: Readonly<Record<string, string | boolean>>
  readonly drop: string
  /** SQL that fails where dropping it would lose something that may not be. */
  readonly guard?: (discard: readonly Discard[]) => string
}

/** What may be lost with the tables: events not yet published (dead ones too), or what is in no archive but this one. */
export const DISCARDS = ['pending', 'archive'] as const
export type Discard = (typeof DISCARDS)[number]

export const PARTITIONS = ['day', 'week', 'month'] as const
/** How much time one partition holds. */
export type Partition = (typeof PARTITIONS)[number]

/** What an outbox table has beside its columns: indexes, partitions, an archive. */
export interface OutboxSchemaOptions {
  /** An index by tenant. Every enqueue pays for it. Default false. */
  tenants?: boolean
  /**
   * A table of event ids, so that enqueue stays idempotent where events are removed once they are published. Every
   * enqueue writes one row more. Default false; always with `partition`.
   */
  dedup?: boolean
  /** Time partitions, so that old events are dropped as a whole. Default: one table. */
  partition?: Partition
  /**
   * A table into which the cleaner moves what it removes; `files` is only written down, so that a cleaner without
   * this option removes nothing. Default false.
   */
  archive?: boolean | 'files'
  /**
   * The outbox is a log: with its archive table, which this implies, it keeps every event for good in the order of its
   * number, for projections. Every enqueue and every settlement enters one index more. Default false.
   */
  log?: boolean
}

export const OUTBOX_OPTIONS: OptionNames<OutboxSchemaOptions> = {
  log: true,
  tenants: true,
  dedup: true,
  partition: true,
  archive: true,
}

/** How many partitions beyond the present one are kept ready. */
export const PARTITIONS_AHEAD = { day: 7, week: 4, month: 2 } as const

/** Room in each page for the next version of a row, and a vacuum that keeps up with a queue. */
const STORAGE = `fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.2,
  autovacuum_analyze_scale_factor = 0.05`

/** `single`: one connection for all, as PGlite has it, see wake in names.ts. */
export function outboxSchema(
  table: string | OutboxNames = 'outbox',
  options: OutboxSchemaOptions = {},
  single = false,
): TableSchema {
  checkOptions('outbox schema', options, OUTBOX_OPTIONS)
  const names = typeof table === 'string' ? new OutboxNames(table) : table
  const { tenants = false, partition, log = false } = options
  if (log && options.archive === 'files') throw refusedByLog(names.table.text, 'archive')
  const archive = log || (options.archive ?? false)
  if (partition !== undefined) oneOf('outbox schema: partition', partition, PARTITIONS)
  const dedup = (options.dedup ?? false) || partition !== undefined
  const parted = partition !== undefined
  const create = names.fill(
    sql['outbox-create']
      .replace('{{primary}}', parted ? 'event_id, created_at' : 'event_id')
      .replace('{{storage}}', parted ? 'PARTITION BY RANGE (created_at)' : `WITH (\n  ${STORAGE}\n)`),
  )
  const chosen: { option: string; sql: string }[] = []
  if (parted) {
    const sql = `${partitionSql('partition-default', names, partition)}\n\n${aheadSql(names, partition)}`
    chosen.push({ option: 'partition', sql })
  }
  if (tenants) chosen.push({ option: 'tenants', sql: names.fill(sql['outbox-upgrade-tenants']) })
  if (dedup) chosen.push({ option: 'dedup', sql: names.fill(sql['outbox-upgrade-dedup']) })
  if (archive === true) chosen.push({ option: 'archive', sql: names.fill(sql['archive-create']) })
  if (log) {
    const text = sql['outbox-upgrade-log'].replaceAll('{{unique}}', parted ? '' : 'UNIQUE')
    chosen.push({ option: 'log', sql: names.fill(text) })
  }
  return {
    table: names.table,
    versions: [
      create,
      names.fill(sql['outbox-upgrade-2']),
      names.fill(sql['outbox-upgrade-3'], { wake: single ? 'always' : 'flag' }),
      names.fill(sql['outbox-upgrade-4']),
    ],
    chosen,
    options: { tenants, dedup, partition: partition ?? false, archive, log },
    drop: names.fill(sql['outbox-drop']),
    guard: (discard) => guardSql(names, discard),
  }
}

function guardSql(names: OutboxNames, discard: readonly Discard[]): string {
  const values: Record<string, string> = {
    keep_pending: String(!discard.includes('pending')),
    keep_archive: String(!discard.includes('archive')),
    versions: versionsTable(names.table),
    bare: names.table.table,
    name: names.table.text,
  }
  return names.fill(sql['outbox-down'].replace(/\{\{(\w+)\}\}/g, (all, name: string) => values[name] ?? all))
}

/** Where versions are kept: in the same schema as the table. */
export function versionsTable({ schema }: TableName): string {
  return `${schema === undefined ? '' : `"${schema}".`}"waybill_schema"`
}

export function inboxSchema(table: string | InboxNames = new InboxNames()): TableSchema {
  const names = typeof table === 'string' ? new InboxNames(table) : table
  const versions = [names.fill(sql['inbox-create']), names.fill(sql['inbox-upgrade-2'])]
  return { table: names.table, versions, chosen: [], options: {}, drop: names.fill(sql['inbox-drop']) }
}

/** The tables to create or upgrade. */
export interface MigrationsOptions extends OutboxSchemaOptions {
  outbox?: string | OutboxNames
  inbox?: string | InboxNames
  /** Further tables of one's own that are to be kept in the same way. */
  tables?: readonly TableSchema[]
}

const MIGRATIONS_OPTIONS: OptionNames<MigrationsOptions> = {
  outbox: true,
  inbox: true,
  tables: true,
  ...OUTBOX_OPTIONS,
}

export function tablesOf(options: MigrationsOptions, single = false): TableSchema[] {
  checkOptions('migrations', options, MIGRATIONS_OPTIONS)
  const { outbox, inbox, tables = [], ...chosen } = options
  const found = [...tables]
  if (inbox !== undefined) found.unshift(inboxSchema(inbox))
  if (outbox !== undefined) found.unshift(outboxSchema(outbox, chosen, single))
  return found
}

/** Creates what partitions are missing from now on. */
export function aheadSql(names: OutboxNames, unit: Partition): string {
  return partitionSql('partition-ahead', names, unit)
}

function partitionSql(file: 'partition-default' | 'partition-ahead', names: OutboxNames, unit: Partition): string {
  const { schema, table } = names.table
  const values: Record<string, string> = {
    unit,
    ahead: String(PARTITIONS_AHEAD[unit]),
    prefix: schema === undefined ? '' : `"${schema}".`,
    table,
    storage: STORAGE.replaceAll(/\s+/g, ' '),
    partition_default: names.table.companion('default'),
  }
  return names.fill(sql[file].replace(/\{\{(\w+)\}\}/g, (all, name: string) => values[name] ?? all))
}
