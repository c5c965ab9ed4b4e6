import { telemetry, uuidv7 } from '../core/index.ts'
import type { Source, Waits } from '../flow/index.ts'
import type { Reader, ReaderOptions } from '../outbox/reader.ts'
import { Waiting } from '../outbox/waiting.ts'
import type { MemoryLeadership } from './leadership.ts'
import { leaseSource } from './lease.ts'
import { type OwnerSession, ownerSource } from './owner.ts'
import type { Table } from './table.ts'

export interface Readable {
  readonly table: Table
  readonly leadership: MemoryLeadership
  readonly owners: Set<OwnerSession>
}

/** A relay's part in reading an outbox in memory: as its owner, the owner of some shards, or one of many that compete. */
export class MemoryReader implements Reader {
  readonly #of: Readable
  readonly #options: ReaderOptions
  readonly #member = uuidv7()
  #kind: 'owner' | 'lease' | undefined
  #sources: readonly Source[] = []
  readonly #waiting: Waiting

  constructor(of: Readable, options: ReaderOptions) {
    this.#of = of
    this.#options = options
    this.#waiting = new Waiting(of.table.name, undefined, options.lease, options.clock)
  }

  async share(): Promise<readonly Source[]> {
    this.#kind ??= await this.#choose()
    const refusedBy = await this.#join()
    if (refusedBy !== undefined) {
      this.#tellRefused(refusedBy)
      return []
    }
    this.#waiting.over()
    if (this.#sources.length === 1) return this.#sources
    const members = await this.#of.leadership.members()
    return this.#sources.filter((_, shard) => members[shard % members.length] === this.#member)
  }

  waiting(): Waits | undefined {
    return this.#waiting.status()
  }

  async close(): Promise<void> {
    await this.#of.leadership.leave(this.#member)
  }

  get #mode(): string {
    return this.#kind === 'lease' ? 'lease' : `owner/${this.#options.shards}`
  }

  #join(): Promise<string | undefined> {
    return this.#of.leadership.join(this.#member, this.#mode, this.#options.lease)
  }

  async #choose(): Promise<'owner' | 'lease'> {
    const { reader, shards } = this.#options
    const others = reader === 'auto' && (await this.#of.leadership.modes()).includes('lease')
    const kind = reader === 'lease' || others ? 'lease' : 'owner'
    const why =
      reader !== 'auto' ? 'as it was told' : others ? 'relays that compete are at work already' : 'the default'
    this.#sources =
      kind === 'lease'
        ? [leaseSource({ ...this.#of, ...this.#options, allowed: async () => (await this.#join()) === undefined })]
        : Array.from({ length: shards }, (_, shard) =>
            ownerSource({ ...this.#of, ...this.#options, shard, member: this.#member }),
          )
    telemetry['relay.reader'].publish({ table: this.#of.table.name, reader: kind, shards, why })
    return kind
  }

  #tellRefused(mode: string): void {
    const other = this.#of.leadership.otherMode(this.#member, this.#mode)
    if (other !== undefined) this.#waiting.for(other, `it reads as ${mode}, and this relay as ${this.#mode}`)
  }
}
