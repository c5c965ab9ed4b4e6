import { createHash } from 'node:crypto'
import { checkOptions, type Duration, milliseconds, Unavailable, untilAborted } from '../core/index.ts'
import { answered } from '../drivers/sql/connection.ts'
import { refusePool, sqlOf } from '../drivers/sql/database.ts'
import { type TableName, tableName } from '../drivers/sql/identifiers.ts'
import type { Database, SqlResult } from '../drivers/sql/sql.ts'
import {
  type CleanOptions,
  checkInboxKey,
  cleanOptions,
  type Inbox,
  type InboxAnswer,
  type InboxKey,
  type Once,
  once,
} from '../store/inbox.ts'
import { explained } from './errors.ts'
import { sql } from './sql.generated.ts'

export const DEFAULT_INBOX = 'processed_messages'

/**
 * Longer than anything comes again by itself: brokers keep messages for 7 days (Kafka's default) or 14 (the most that
 * SQS allows), and a dead event waits for a person, who may be on holiday. What is replayed after that is handled anew.
 */
export const INBOX_RETENTION = '30d'

/** The table of an inbox, and how long it remembers. */
export interface PostgresInboxOptions {
  /** Default `processed_messages`. */
  table?: string
  /** What `clean` keeps when no retention is given. Default 30 days. */
  retention?: Duration
}

/** The table of one inbox, and SQL with its name filled in. */
export class InboxNames {
  readonly table: TableName

  constructor(table: string = DEFAULT_INBOX) {
    this.table = tableName(table, 'inbox')
  }

  fill(text: string): string {
    return text
      .replaceAll('{{inbox}}', this.table.sql)
      .replaceAll('{{inbox_created}}', this.table.object('created'))
      .replaceAll('{{inbox_created_index}}', this.table.companion('created'))
      .replaceAll('{{inbox_time}}', this.table.object('time'))
  }
}

/** What was handled, kept in the handler's own transaction. */
export class PostgresInbox<Tx = unknown> implements Inbox<Tx> {
  readonly name: string
  readonly names: InboxNames
  readonly #database: Database<Tx>
  readonly #retention: number
  readonly #receive: string
  readonly #clean: string

  constructor(database: Database<Tx>, options: PostgresInboxOptions = {}) {
    checkOptions('inbox', options, { table: true, retention: true })
    this.names = new InboxNames(options.table)
    this.name = this.names.table.text
    this.#database = database
    this.#retention = milliseconds(options.retention ?? INBOX_RETENTION, 'inbox.retention')
    this.#receive = this.names.fill(sql['inbox-receive'])
    this.#clean = this.names.fill(sql['inbox-clean'])
  }

  /**
   * PostgreSQL lets the second wait until the transaction of the first has ended. `busy` when that takes too long: for
   * the caller, who was asked to stop, or for a limit of ours or of the role. The transaction is of no use then.
   */
  async receive(tx: Tx, key: InboxKey, signal?: AbortSignal): Promise<InboxAnswer> {
    checkInboxKey(key, LONGEST)
    const values = [key.subscriber, stored(key.source), stored(key.id)]
    refusePool(tx)
    const asked = answered(sqlOf(tx).query(this.#receive, values), this.#database.within, ignore, tooLong)
    return untilAborted(asked.then(answerOf, this.#fail), signal, () => 'busy')
  }

  /** For code outside a router: runs `fn` unless this subscriber has handled the message before. */
  async once<T>(
    tx: Tx,
    subscriber: string,
    { source, id }: { readonly source: string; readonly id: string },
    fn: () => T | Promise<T>,
  ): Promise<Once<T>> {
    return once(this, tx, { subscriber, source, id }, fn)
  }

  async clean(options: CleanOptions = {}): Promise<number> {
    const { retention, limit } = cleanOptions(options, this.#retention)
    try {
      return (await this.#database.query(this.#clean, [retention, limit])).count
    } catch (error) {
      throw this.#explained(error)
    }
  }

  readonly #fail = (error: unknown): 'busy' => {
    if (error === TOO_LONG || WAITED.has((error as { code?: string } | undefined)?.code ?? '')) return 'busy'
    throw this.#explained(error)
  }

  #explained(error: unknown): unknown {
    return explained(error, `table ${this.name}`)
  }
}

/** The role's lock_timeout and statement_timeout. The statement waits for nothing but another's row. */
const WAITED = new Set(['55P03', '57014'])
const TOO_LONG = new Unavailable('another consumer is handling this message, and has not finished in time')
const tooLong = () => TOO_LONG
const ignore = (): void => {}

function answerOf({ rows }: SqlResult): InboxAnswer {
  return rows.length > 0 ? 'new' : 'done'
}

/** Three such columns, each of at most 3 bytes a character, fit into the 2704 bytes an index entry may have. */
const LONGEST = 255

/**
 * As it is; of one that is too long for the index, or that PostgreSQL cannot hold as text (a NUL, half a character),
 * its hash. CloudEvents allows any string.
 */
function stored(value: string): string {
  if (value.length <= LONGEST && !/[\0\p{Cs}]/u.test(value)) return value
  return `sha256:${createHash('sha256').update(value, 'utf16le').digest('hex')}`
}
