import { hostname } from 'node:os'
import { telemetry, Unavailable, uuidv7, WaybillError } from '../core/index.ts'
import { answered } from '../drivers/sql/connection.ts'
import type { Database, Sql } from '../drivers/sql/sql.ts'
import type { Source, Waits } from '../flow/index.ts'
import type { Reader, ReaderOptions } from '../outbox/reader.ts'
import { Waiting } from '../outbox/waiting.ts'
import { PostgresLeadership } from './leadership.ts'
import { leaseSource } from './lease.ts'
import type { OutboxNames } from './names.ts'
import { ownerSource } from './owner.ts'
import { PoolBudget } from './pool-budget.ts'
import { connectionsOf, poolOrServer } from './relay-connections.ts'

/** A relay's part in reading a PostgreSQL outbox, as its owner, the owner of some shards, or one of many that compete. */
export class PostgresReader implements Reader {
  readonly #options: ReaderOptions
  readonly #db: Database
  readonly #leadership: PostgresLeadership
  readonly #member = `${hostname()}:${process.pid}:${uuidv7().slice(-12)}`
  readonly #make: (kind: 'owner' | 'lease') => Source[]
  #kind: 'owner' | 'lease' | undefined
  readonly #waiting: Waiting
  readonly #budget: PoolBudget
  /** Connections of open sessions. What the relay says while it reads, it says on them: the pool may be used up. */
  readonly #open = new Set<Sql>()
  #sources: readonly Source[] = []

  constructor(db: Database, names: OutboxNames, prepare: boolean, options: ReaderOptions) {
    this.#options = options
    this.#db = db
    this.#leadership = new PostgresLeadership(db, names)
    this.#budget = PoolBudget.of(db)
    this.#waiting = new Waiting(names.table.text, undefined, options.lease, options.clock)
    const { shards, ...settings } = options
    const common = { ...settings, db, names, prepare, open: this.#open }
    this.#make = (kind) =>
      kind === 'lease'
        ? [leaseSource({ ...common, allowed: async () => (await this.#join('lease')) === undefined })]
        : Array.from({ length: shards }, (_, shard) =>
            ownerSource({ ...common, shard, shards, leadership: this.#leadership, member: this.#member }),
          )
  }

  /** Whether the pool has the connections that it will keep, and whether they may write. */
  async check(): Promise<void> {
    const { reader, shards, wake } = this.#options
    const sessions = reader === 'lease' ? 1 : shards
    const each = wake ? 'to read, to settle and to be woken' : 'to read and to settle'
    const of = sessions === 1 ? '' : ` for each of ${sessions} shards`
    const table = this.#leadership.table
    const count = sessions * connectionsOf(wake)
    const what = `the relay of ${table} keeps ${count}, ${each}${of}`
    // Owners of a table take turns; those that compete read at the same time.
    const group = reader === 'lease' ? this.#member : table
    await this.#budget.keep(this.#member, { group, count, what })
    await refuseReadOnly(this.#db, table)
  }

  share(): Promise<readonly Source[]> {
    return this.#answered(this.#share())
  }

  async #share(): Promise<readonly Source[]> {
    const kind = this.#kind ?? (await this.#choose())
    const refusedBy = await this.#join(kind)
    if (refusedBy !== undefined) {
      await this.#tellRefused(kind, refusedBy)
      return []
    }
    this.#waiting.over()
    const { shards } = this.#options
    if (kind === 'lease' || shards === 1) return this.#sources
    const members = await this.#leadership.members(this.#on())
    const place = members.indexOf(this.#member)
    return this.#sources.filter((_, shard) => shard % members.length === place)
  }

  waiting(): Waits | undefined {
    return this.#waiting.status()
  }

  rest(): void {
    this.#budget.leave(this.#member)
  }

  async close(): Promise<void> {
    this.rest()
    await this.#answered(this.#leadership.leave(this.#member)).catch(() => {})
  }

  /** A database that does not answer must not keep a relay from its next try, nor from stopping. */
  #answered<T>(answer: Promise<T>): Promise<T> {
    const ms = Math.max(1000, this.#options.lease / 3)
    return answered(answer, ms, () => {}).catch((error) => {
      // What has a connection of its own does not wait for the pool.
      throw this.#open.size > 0 ? error : poolOrServer(this.#db, ms, error)
    })
  }

  #on(): Sql | undefined {
    const [first] = this.#open
    return first
  }

  #mode(kind: 'owner' | 'lease'): string {
    return kind === 'lease' ? 'lease' : `owner/${this.#options.shards}`
  }

  #join(kind: 'owner' | 'lease'): Promise<string | undefined> {
    return this.#leadership.join(this.#member, this.#mode(kind), this.#options.lease, this.#on())
  }

  /** The owner keeps order and is the fastest; with relays at work that compete, another joins them. */
  async #choose(): Promise<'owner' | 'lease'> {
    const { reader } = this.#options
    let why = 'as it was told'
    let kind: 'owner' | 'lease' = reader === 'lease' ? 'lease' : 'owner'
    if (reader === 'auto') {
      const modes = await this.#leadership.modes()
      kind = modes.includes('lease') ? 'lease' : 'owner'
      why = kind === 'lease' ? 'relays that compete are at work already' : 'it keeps order per key and is the fastest'
    }
    this.#kind = kind
    this.#sources = this.#make(kind)
    telemetry['relay.reader'].publish({
      table: this.#leadership.table,
      reader: kind,
      shards: this.#options.shards,
      why,
    })
    return kind
  }

  async #tellRefused(kind: 'owner' | 'lease', mode: string): Promise<void> {
    const other = await this.#leadership.otherMode(this.#member, this.#mode(kind))
    // It may be gone by now: then the next try succeeds.
    if (other === undefined) return
    this.#waiting.for(other, `it reads as ${mode}, and this relay as ${this.#mode(kind)}`)
  }
}

/** A standby may become the primary, and is waited for. A session that is told to be read-only stays so. */
async function refuseReadOnly(db: Database, table: string): Promise<void> {
  const asked = `SELECT current_setting('transaction_read_only') AS read_only, pg_is_in_recovery() AS standby`
  const [row] = (await db.query(asked)).rows
  if (row?.['standby'] === true) throw new Unavailable('this is a standby, and a relay needs the primary')
  if (row?.['read_only'] !== 'on') return
  const text = `default_transaction_read_only is on for this role or database, and ${table} must be written`
  throw new WaybillError('READ_ONLY', text)
}
