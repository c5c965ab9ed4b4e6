import { warnOnce } from '../core/index.ts'
import { sqlOf } from '../drivers/database.ts'
import type { Database, Sql } from '../drivers/sql.ts'
import { statements } from './migrate-statements.ts'
import { aheadSql, type Partition } from './migrate-tables.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** Whoever waits for a lock makes all who come later wait too: give up soon, and try again next time. */
const CREATE_WITHIN = `SET LOCAL lock_timeout = '1s'`
const DROP_WITHIN = `SET LOCAL lock_timeout = '250ms'`

/**
 * The time partitions of an outbox: those ahead are created in good time, and old ones dropped as a whole, once every
 * event in them is published and older than the retention.
 */
export class Partitions {
  readonly #db: Database
  readonly #names: OutboxNames

  constructor(db: Database, names: OutboxNames) {
    this.#db = db
    this.#names = names
  }

  async create(unit: Partition): Promise<void> {
    await unlessLocked(() =>
      this.#db.transaction(async (tx) => {
        const on = sqlOf(tx)
        await on.query(CREATE_WITHIN)
        for (const statement of statements(aheadSql(this.#names, unit))) await on.query(statement)
      }),
    )
  }

  /** Answers how many were dropped. */
  async drop(retention: number): Promise<number> {
    const { rows } = await this.#db.query(this.#names.fill(sql['partition-old']), [String(retention)])
    let dropped = 0
    for (const row of rows) {
      const partition = row['partition'] as string
      if (await this.#kept(this.#db, partition, retention)) continue
      if (await unlessLocked(() => this.#dropOne(partition, retention))) dropped++
    }
    return dropped
  }

  /** The parent is locked first, as everybody who reads it does: the other way round they would wait for each other. */
  #dropOne(partition: string, retention: number): Promise<boolean> {
    return this.#db.transaction(async (tx) => {
      const on = sqlOf(tx)
      await on.query(DROP_WITHIN)
      await on.query(this.#names.fill(`LOCK TABLE ONLY {{outbox}}, ONLY ${partition} IN ACCESS EXCLUSIVE MODE`))
      // A replay, or a transaction that was open for a long time, may have changed it since it was looked at.
      if (await this.#kept(on, partition, retention)) return false
      await on.query(`DROP TABLE ${partition}`)
      return true
    })
  }

  async #kept(on: Sql, partition: string, retention: number): Promise<boolean> {
    const text = sql['partition-kept'].replaceAll('{{partition}}', partition)
    const row = (await on.query(text, [String(retention)])).rows[0]!
    const why = row['pending'] === true ? 'not published' : row['dead'] === true ? 'dead' : undefined
    if (why !== undefined) {
      const text = `partition ${partition} is older than the retention and is kept, because events in it are ${why}`
      warnOnce('cleaner', text)
    }
    return why !== undefined || row['recent'] === true
  }
}

/** `undefined` when a lock could not be had in time. */
async function unlessLocked<T>(fn: () => Promise<T>): Promise<T | undefined> {
  try {
    return await fn()
  } catch (error) {
    if ((error as { code?: unknown } | null)?.code === '55P03') return undefined
    throw error
  }
}
