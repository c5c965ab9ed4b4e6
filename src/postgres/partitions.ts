import { errorSummary, WaybillError, warnOnce } from '../core/index.ts'
import { limited } from '../drivers/sql/connection.ts'
import { sqlOf } from '../drivers/sql/database.ts'
import type { Database, Sql } from '../drivers/sql/sql.ts'
import { aheadSql, type Partition } from './migrate-tables.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'
import { statements } from './statements.ts'

/** Whoever waits for a lock makes all who come later wait too: give up soon, and try again next time. */
const CREATE_WITHIN = `SET LOCAL lock_timeout = '1s'`
const DROP_WITHIN = `SET LOCAL lock_timeout = '250ms'`
/** While a partition is dropped everybody waits. */
const LOCKED_WITHIN = `SET LOCAL statement_timeout = '2s'`
/** A lock that was not to be had so many times in a row is worth a word. */
const TOO_OFTEN = 10

/**
 * The time partitions of an outbox: those ahead are created in good time, and old ones dropped as a whole, once every
 * event in them is published and older than the retention. With an archive a partition is dropped only when it is empty:
 * its events were moved to the archive one batch after the other, so that a crash at any moment loses none.
 */
export class Partitions {
  readonly #db: Database
  readonly #names: OutboxNames
  /** How many times in a row something could not be locked. */
  readonly #locked = new Map<string, number>()

  constructor(db: Database, names: OutboxNames) {
    this.#db = db
    this.#names = names
  }

  async create(unit: Partition): Promise<void> {
    await this.#unlessLocked(`the partitions ahead of ${this.#names.table.text}`, async () => {
      await this.#db.transaction(async (tx) => {
        const on = limited(sqlOf(tx), this.#db.within)
        await on.query(CREATE_WITHIN)
        for (const statement of statements(aheadSql(this.#names, unit))) await on.query(statement)
      })
    })
  }

  /** Returns how many were dropped. One that cannot be dropped does not keep the others; it rejects when all had their turn. */
  async drop(retention: number, archived: boolean): Promise<number> {
    const { rows } = await this.#db.query(this.#names.fill(sql['partition-old']), [String(retention)])
    let dropped = 0
    const errors: unknown[] = []
    for (const row of rows) {
      const partition = row['partition'] as string
      try {
        if (await this.#kept(this.#db, partition, retention, archived)) continue
        const drop = () => this.#dropOne(partition, retention, archived)
        if (await this.#unlessLocked(`partition ${partition}`, drop)) dropped++
      } catch (error) {
        const text = `partition ${partition} cannot be dropped, and is tried again in every round: ${errorSummary(error)}`
        errors.push(new WaybillError('NOT_DROPPED', text, { cause: error }))
      }
    }
    if (errors.length === 1) throw errors[0]
    if (errors.length > 1) throw new AggregateError(errors, errors.map(errorSummary).join('. '))
    return dropped
  }

  /** The parent is locked first, as everybody who reads it does: the other way round they would wait for each other. */
  #dropOne(partition: string, retention: number, archived: boolean): Promise<boolean> {
    return this.#db.transaction(async (tx) => {
      const on = limited(sqlOf(tx), this.#db.within)
      await on.query(DROP_WITHIN)
      await on.query(LOCKED_WITHIN)
      await on.query(this.#names.fill(`LOCK TABLE ONLY {{outbox}}, ONLY ${partition} IN ACCESS EXCLUSIVE MODE`))
      // A replay, or a transaction that was open for a long time, may have changed it since it was looked at.
      if (await this.#kept(on, partition, retention, archived)) return false
      await on.query(`DROP TABLE ${partition}`)
      return true
    })
  }

  async #kept(on: Sql, partition: string, retention: number, archived: boolean): Promise<boolean> {
    const text = sql['partition-kept'].replaceAll('{{partition}}', partition)
    const row = (await on.query(text, [String(retention)])).rows[0]!
    const why = row['pending'] === true ? 'not published' : row['dead'] === true ? 'dead' : undefined
    if (why !== undefined) {
      const text = `partition ${partition} is older than the retention and is kept, because events in it are ${why}`
      warnOnce('cleaner', text)
    }
    return why !== undefined || row['recent'] === true || (archived && row['published'] === true)
  }

  /** `undefined` when a lock could not be had in time, or what is done under it took too long. */
  async #unlessLocked<T>(what: string, fn: () => Promise<T>): Promise<T | undefined> {
    try {
      const done = await fn()
      this.#locked.delete(what)
      return done
    } catch (error) {
      const code = (error as { code?: unknown } | null)?.code
      if (code !== '55P03' && code !== '57014') throw error
      const times = (this.#locked.get(what) ?? 0) + 1
      this.#locked.set(what, times)
      if (times === TOO_OFTEN) {
        const advice = 'look into pg_locks for a transaction that stays open; it is tried again in every round'
        warnOnce('cleaner', `${what} could not be locked ${times} times in a row; ${advice}`)
      }
      return undefined
    }
  }
}
