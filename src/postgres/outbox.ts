import { type Message, WaybillError } from '../core/index.ts'
import { limited } from '../drivers/sql/connection.ts'
import { type Sql, textArray } from '../drivers/sql/sql.ts'
import { refusePool, sqlOf } from '../drivers/sql/sql-of.ts'
import { checkEnqueueOptions, checkEvent } from '../store/enqueue.ts'
import type { EnqueueOptions } from '../store/store.ts'
import { explained } from './errors.ts'
import { type EventRow, eventRow } from './event-row.ts'
import type { FillOptions, OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

const ENQUEUE_OPTIONS = ['key', 'topic', 'tenant', 'availableAt', 'aggregate', 'serialize'] as const

export interface PostgresEnqueueOptions extends EnqueueOptions {
  /**
   * Takes a transaction-level lock on the key first, for writers that do not lock it themselves: numbers of one key are
   * then in commit order.
   */
  serialize?: boolean
}

export interface EnqueueSettings {
  readonly names: OutboxNames
  readonly wake: NonNullable<FillOptions['wake']>
  readonly topic: (message: Message) => string
  /** How long a statement may go without an answer, in milliseconds. */
  readonly within: number
  /** Ids are kept in a table of their own. */
  readonly dedup: boolean
  /** A pool may be given in place of a transaction: the event is then committed alone. */
  readonly allowPool: boolean
}

/** How many buckets keys are hashed into for locking: one lock per key would run out of shared memory. */
const LOCK_BUCKETS = 1024

/**
 * Writes events in the caller's transaction: one statement for one or many. The same event id again changes nothing and
 * answers the sequence it has.
 */
export class Enqueue {
  readonly #settings: EnqueueSettings
  readonly #one: string | undefined
  readonly #many: string
  readonly #known: string
  readonly #lock: string

  constructor(settings: EnqueueSettings) {
    this.#settings = settings
    const { names, wake, dedup } = settings
    this.#one = dedup ? undefined : names.fill(sql['enqueue-one'], { wake })
    this.#many = names.fill(sql[dedup ? 'enqueue-dedup' : 'enqueue'], { wake })
    this.#known = names.fill(sql[dedup ? 'enqueued-dedup' : 'enqueued'])
    this.#lock = names.fill(sql['serialize'])
  }

  async run(
    tx: unknown,
    events: Message | readonly Message[],
    options: PostgresEnqueueOptions = {},
  ): Promise<string | string[]> {
    checkEnqueueOptions(options, ENQUEUE_OPTIONS)
    const list = Array.isArray(events) ? (events as readonly Message[]) : [events as Message]
    const rows = list.map((event) => this.#row(event, options))
    if (!this.#settings.allowPool) refusePool(tx)
    const connection = limited(sqlOf(tx), this.#settings.within)
    if (rows.length === 0) return []
    try {
      if (options.serialize) await this.#serialize(connection, rows)
      if (this.#one === undefined || Array.isArray(events)) {
        const sequences = await this.#sequences(connection, rows, await this.#insertMany(connection, rows))
        return Array.isArray(events) ? sequences : sequences[0]!
      }
      const { rows: inserted } = await connection.query(this.#one, rows[0]!)
      if (inserted.length > 0) return inserted[0]!['sequence'] as string
      return (await this.#sequences(connection, rows, new Map()))[0]!
    } catch (error) {
      throw explained(error, `table ${this.#settings.names.table.text}`)
    }
  }

  #row(event: Message, options: PostgresEnqueueOptions): EventRow {
    checkEvent(event)
    return eventRow(event, options, this.#settings.topic)
  }

  async #insertMany(connection: Sql, rows: readonly EventRow[]): Promise<Map<string, string>> {
    const columns = rows[0]!.map((_, column) => textArray(rows.map((row) => row[column])))
    const inserted = await connection.query(this.#many, columns)
    return new Map(inserted.rows.map((row) => [row['event_id'] as string, row['sequence'] as string]))
  }

  /** What was there already is asked for in a second statement: ON CONFLICT DO NOTHING returns no row for it. */
  async #sequences(connection: Sql, rows: readonly EventRow[], known: Map<string, string>): Promise<string[]> {
    const missing = [...new Set(rows.map((row) => row[0]!))].filter((id) => !known.has(id))
    if (missing.length > 0) {
      const found = await connection.query(this.#known, [textArray(missing)])
      for (const row of found.rows) known.set(row['event_id'] as string, row['sequence'] as string)
    }
    return rows.map((row) => {
      const sequence = known.get(row[0]!)
      if (sequence !== undefined) return sequence
      const text = `event ${row[0]} is being written by another transaction that this one cannot see; run the transaction again`
      throw new WaybillError('CONFLICT', text)
    })
  }

  async #serialize(connection: Sql, rows: readonly EventRow[]): Promise<void> {
    const keys = rows.map((row) => row[3]).filter((key) => key !== null)
    if (keys.length > 0) await connection.query(this.#lock, [textArray(keys as string[]), LOCK_BUCKETS])
  }
}
