import { hostname } from 'node:os'
import { telemetry, uuidv7 } from '../core/index.ts'
import { answered } from '../drivers/connection.ts'
import type { Database } from '../drivers/sql.ts'
import type { Source } from '../flow/index.ts'
import type { Reader, ReaderOptions } from '../outbox/store.ts'
import { PostgresLeadership } from './leadership.ts'
import { leaseSource } from './lease-source.ts'
import type { OutboxNames } from './names.ts'
import { ownerSource } from './owner-source.ts'

/** A relay's part in reading a PostgreSQL outbox, as its owner, the owner of some shards, or one of many that compete. */
export class PostgresReader implements Reader {
  readonly #options: ReaderOptions
  readonly #leadership: PostgresLeadership
  readonly #member = `${hostname()}:${process.pid}:${uuidv7().slice(-12)}`
  readonly #make: (kind: 'owner' | 'lease') => Source[]
  #kind: 'owner' | 'lease' | undefined
  #sources: readonly Source[] = []
  #refusedBy: string | undefined

  constructor(db: Database, names: OutboxNames, prepare: boolean, options: ReaderOptions) {
    this.#options = options
    this.#leadership = new PostgresLeadership(db, names)
    const { shards, ...settings } = options
    const common = { ...settings, db, names, prepare }
    this.#make = (kind) =>
      kind === 'lease'
        ? [leaseSource({ ...common, allowed: async () => (await this.#join('lease')) === undefined })]
        : Array.from({ length: shards }, (_, shard) => ownerSource({ ...common, shard, shards, member: this.#member }))
  }

  share(): Promise<readonly Source[]> {
    return this.#answered(this.#share())
  }

  async #share(): Promise<readonly Source[]> {
    const kind = this.#kind ?? (await this.#choose())
    const refusedBy = await this.#join(kind)
    if (refusedBy !== undefined) {
      this.#tellRefused(refusedBy)
      return []
    }
    this.#refusedBy = undefined
    const { shards } = this.#options
    if (kind === 'lease' || shards === 1) return this.#sources
    const members = await this.#leadership.members()
    const place = members.indexOf(this.#member)
    return this.#sources.filter((_, shard) => shard % members.length === place)
  }

  async close(): Promise<void> {
    await this.#answered(this.#leadership.leave(this.#member)).catch(() => {})
  }

  /** A database that does not answer must not keep a relay from its next try, nor from stopping. */
  #answered<T>(answer: Promise<T>): Promise<T> {
    return answered(answer, Math.max(1000, this.#options.lease / 3), () => {})
  }

  #mode(kind: 'owner' | 'lease'): string {
    return kind === 'lease' ? 'lease' : `owner/${this.#options.shards}`
  }

  #join(kind: 'owner' | 'lease'): Promise<string | undefined> {
    return this.#leadership.join(this.#member, this.#mode(kind), this.#options.lease)
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

  #tellRefused(mode: string): void {
    if (mode === this.#refusedBy) return
    this.#refusedBy = mode
    const message = `${this.#leadership.table}: relays that read as ${mode} are at work; this one (${this.#mode(this.#kind!)}) waits until they are gone`
    telemetry.warning.publish({ where: 'relay', message })
  }
}
