import { checkOptions, type Duration, describe, milliseconds, WaybillError, wholeNumber } from '../core/index.ts'
import { limited } from '../drivers/sql/connection.ts'
import { sqlOf } from '../drivers/sql/database.ts'
import { type Database, textArray } from '../drivers/sql/sql.ts'
import { refusedByLog } from '../store/log.ts'
import { writeArchive } from './archive-files.ts'
import type { StoredRow } from './columns.ts'
import { notMigrated } from './errors.ts'
import { recorded } from './migrate.ts'
import type { Partition } from './migrate-tables.ts'
import type { OutboxNames } from './names.ts'
import { Partitions } from './partitions.ts'
import { sql } from './sql.generated.ts'

/** Where cleaned events go: the archive table, or compressed files in a folder. `none` where they are to be gone for good. */
export type ArchiveTarget = 'table' | 'none' | { readonly directory: string }

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
  readonly #given: ArchiveTarget | undefined
  #archive: Exclude<ArchiveTarget, 'none'> | undefined
  readonly #partitions: Partitions
  #layout: Layout | undefined

  constructor(db: Database, names: OutboxNames, options: CleaningOptions = {}) {
    this.#db = db
    this.#names = names
    this.#retention = milliseconds(options.retention ?? OUTBOX_RETENTION, 'outbox.retention')
    this.#given = checkArchive(options.archive)
    this.#archive = this.#given === 'none' ? undefined : this.#given
    this.#partitions = new Partitions(db, names)
  }

  /** Returns how many were removed, ids that are kept apart among them. */
  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('outbox.clean', options, { retention: true, limit: true })
    const retention = this.#keep(options.retention)
    const limit = wholeNumber('outbox.clean: limit', options.limit ?? BATCH, { max: 1_000_000 })
    const { dedup, partition } = await this.#known()
    // Ids are forgotten even while events cannot be removed, such as when the archive's disk is full.
    return inTurn(
      () => this.#events(retention, limit, partition !== false),
      async () => (dedup ? this.#run('clean-ids', [String(retention), String(limit)]) : 0),
    )
  }

  /**
   * What was marked by hand gets its time. Partitions: those that will be needed are created, those that are no longer
   * are dropped. Returns how many were.
   */
  async maintain(options: { retention?: number } = {}): Promise<number> {
    checkOptions('outbox.maintain', options, { retention: true })
    const { partition } = await this.#known()
    await this.#run('clean-undated', [String(BATCH)])
    if (partition === false) return 0
    const retention = this.#keep(options.retention)
    return inTurn(
      () => this.#partitions.create(partition).then(() => 0),
      () => this.#partitions.drop(retention, this.#archive !== undefined),
    )
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
      const on = limited(sqlOf(tx), this.#db.within)
      const pick = this.#names.fill(sql['archive-pick'])
      const { rows } = await on.query(pick, [String(retention), String(limit), String(FILE_BYTES)])
      if (rows.length === 0) return 0
      await writeArchive(directory, table.text, rows as unknown as StoredRow[])
      const column = (name: string) => textArray(rows.map((row) => row[name] as string))
      const removed = [column('event_id'), column('created_at')]
      return (await on.query(this.#names.fill(sql['archive-remove']), removed)).count
    })
  }

  async #run(
    name: 'clean-published' | 'clean-undated' | 'clean-ids' | 'archive-move',
    values: string[],
    from = '',
  ): Promise<number> {
    return (await this.#db.query(this.#names.fill(sql[name].replaceAll('{{from}}', from)), values)).count
  }

  async #known(): Promise<Layout> {
    if (this.#layout !== undefined) return this.#layout
    const { version, options } = await recorded(this.#db, this.#names.table)
    if (version === 0) throw notMigrated(this.#names.table.text)
    const log = options['log'] === true
    if (log && (this.#given ?? 'table') !== 'table') throw refusedByLog(this.#names.table.text, 'archive')
    if (log) this.#archive = 'table'
    if (this.#archive === 'table' && options['archive'] !== true) {
      const text = `${this.#names.table.text} has no archive table; run migrate() with archive: true`
      throw new WaybillError('OLD_SCHEMA', text)
    }
    if (!log && this.#given === undefined && (options['archive'] ?? false) !== false) {
      const text = `${this.#names.table.text} has an archive, and this cleaner was not given it: nothing is removed. Give the outbox the same archive that migrate() was given, or archive: 'none'`
      throw new WaybillError('ARCHIVE_UNKNOWN', text)
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

/** The sum of both. The second has its turn even where the first fails, which is thrown then. */
async function inTurn(first: () => Promise<number>, second: () => Promise<number>): Promise<number> {
  let count = 0
  try {
    count = await first()
  } catch (error) {
    await second()
    throw error
  }
  return count + (await second())
}

function checkArchive(archive: ArchiveTarget | undefined): ArchiveTarget | undefined {
  if (archive === undefined || archive === 'table' || archive === 'none') return archive
  if (typeof archive === 'object' && typeof archive?.directory === 'string' && archive.directory !== '') return archive
  const text = `outbox.archive: ${describe(archive)} is not allowed; give 'table', { directory } for files, or 'none'`
  throw new WaybillError('INVALID_OPTION', text)
}
