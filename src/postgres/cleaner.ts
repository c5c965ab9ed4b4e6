import { checkOptions, type Duration, describe, milliseconds, WaybillError, wholeNumber } from '../core/index.ts'
import { sqlOf } from '../drivers/database.ts'
import { type Database, textArray } from '../drivers/sql.ts'
import { writeArchive } from './archive-files.ts'
import { STORED, type StoredRow } from './archive-row.ts'
import { recorded } from './migrate.ts'
import { notMigrated } from './migrate-errors.ts'
import type { Partition } from './migrate-tables.ts'
import type { OutboxNames } from './names.ts'
import { Partitions } from './partitions.ts'
import { sql } from './sql.generated.ts'

/** Where cleaned events go: the archive table, or compressed files in a folder. */
export type ArchiveTarget = 'table' | { readonly directory: string }

export interface CleaningOptions {
  readonly retention?: Duration
  readonly archive?: ArchiveTarget
}

export const OUTBOX_RETENTION = '7d'
const BATCH = 1000
/** Of payloads in one file: they are held in memory while it is written. */
const FILE_BYTES = 32 * 1024 * 1024

interface Layout {
  readonly dedup: boolean
  readonly partition: Partition | false
}

/** Removes what has been published long enough ago. Never anything else. */
export class Cleaning {
  readonly #db: Database
  readonly #names: OutboxNames
  readonly #retention: number
  readonly #archive: ArchiveTarget | undefined
  readonly #partitions: Partitions
  #layout: Layout | undefined

  constructor(db: Database, names: OutboxNames, options: CleaningOptions = {}) {
    this.#db = db
    this.#names = names
    this.#retention = milliseconds(options.retention ?? OUTBOX_RETENTION, 'outbox.retention')
    this.#archive = checkArchive(options.archive)
    this.#partitions = new Partitions(db, names)
  }

  /** Answers how many were removed, ids that are kept apart among them. */
  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('outbox.clean', options, ['retention', 'limit'])
    const retention = this.#keep(options.retention)
    const limit = wholeNumber('outbox.clean: limit', options.limit ?? BATCH, { max: 1_000_000 })
    const { dedup, partition } = await this.#known()
    let removed = await this.#events(retention, limit, partition !== false)
    if (dedup) removed += await this.#run('clean-ids', [String(retention), String(limit)])
    return removed
  }

  /** Partitions: those that will be needed are created, those that are no longer are dropped. Answers how many were. */
  async maintain(options: { retention?: number } = {}): Promise<number> {
    checkOptions('outbox.maintain', options, ['retention'])
    const { partition } = await this.#known()
    if (partition === false) return 0
    await this.#partitions.create(partition)
    return this.#partitions.drop(this.#keep(options.retention))
  }

  #events(retention: number, limit: number, partitioned: boolean): Promise<number> {
    const values = [String(retention), String(limit)]
    if (this.#archive === 'table') return this.#run('archive-move', values)
    if (this.#archive !== undefined) return this.#toFiles(this.#archive.directory, retention, limit)
    // Partitions are dropped as a whole: only what has gone astray is removed one by one.
    const from = partitioned ? this.#names.table.companion('default') : this.#names.table.sql
    return this.#run('clean-published', values, from)
  }

  async #toFiles(directory: string, retention: number, limit: number): Promise<number> {
    let removed = 0
    for (;;) {
      const written = await this.#toFile(directory, retention, limit - removed)
      removed += written
      // A batch may be short because of its bytes; only an empty one says that nothing is left.
      if (written === 0 || removed >= limit) return removed
    }
  }

  /** On the disk first, then removed: a crash in between leaves an event in two files, never in none. */
  #toFile(directory: string, retention: number, limit: number): Promise<number> {
    const { table } = this.#names
    return this.#db.transaction(async (tx) => {
      const on = sqlOf(tx)
      const pick = this.#names.fill(sql['archive-pick'].replace('{{stored}}', STORED))
      const { rows } = await on.query(pick, [String(retention), String(limit), String(FILE_BYTES)])
      if (rows.length === 0) return 0
      await writeArchive(directory, table.text, rows as unknown as StoredRow[])
      const ids = textArray(rows.map((row) => row['event_id'] as string))
      return (await on.query(this.#names.fill(sql['archive-remove']), [ids])).count
    })
  }

  async #run(name: 'clean-published' | 'clean-ids' | 'archive-move', values: string[], from = ''): Promise<number> {
    return (await this.#db.query(this.#names.fill(sql[name].replaceAll('{{from}}', from)), values)).count
  }

  async #known(): Promise<Layout> {
    if (this.#layout !== undefined) return this.#layout
    const { version, options } = await recorded(this.#db, this.#names.table)
    if (version === 0) throw notMigrated(this.#names.table.text)
    if (this.#archive === 'table' && options['archive'] !== true) {
      const text = `${this.#names.table.text} has no archive table; run migrate() with archive: true`
      throw new WaybillError('OLD_SCHEMA', text)
    }
    this.#layout = {
      dedup: options['dedup'] === true,
      partition: ((options['partition'] as Partition | undefined) ?? false) || false,
    }
    return this.#layout
  }

  #keep(retention: number | undefined): number {
    return milliseconds(retention ?? this.#retention, 'outbox.clean: retention')
  }
}

function checkArchive(archive: ArchiveTarget | undefined): ArchiveTarget | undefined {
  if (archive === undefined || archive === 'table') return archive
  if (typeof archive === 'object' && typeof archive?.directory === 'string' && archive.directory !== '') return archive
  const text = `outbox.archive: ${describe(archive)} is not allowed; give 'table', or { directory } for files`
  throw new WaybillError('INVALID_OPTION', text)
}
