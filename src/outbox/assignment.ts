import { telemetry } from '../core/index.ts'
import type { Source, Waits } from '../flow/index.ts'
import type { Leadership } from './leadership.ts'
import type { Reader, ReaderOptions } from './reader.ts'
import { Waiting } from './waiting.ts'

/** What a store adds to the assignment of its shards. */
export interface AssignmentSettings {
  /** As telemetry names the outbox. */
  readonly table: string
  /** The name of this relay, unlike any other's. */
  readonly member: string
  readonly leadership: Leadership
  /** One shard, read by its owner. */
  owner(shard: number): Source
  /** The whole, read beside others. `allowed`: whether this relay may read: owners keep it out. */
  competing(allowed: () => Promise<boolean>): Source
  /** Ends the wait for a store that does not answer. Default: waits. */
  answered?<T>(answer: Promise<T>): Promise<T>
  /** See Reader. */
  check?(): Promise<void>
  rest?(): void
}

/**
 * Which part of an outbox a relay reads, among many relays: all of it, as its owner or as one of those that compete; or
 * its share of the shards, which are dealt out to the live members by their names.
 */
export class Assignment implements Reader {
  readonly #options: ReaderOptions
  readonly #settings: AssignmentSettings
  readonly #waiting: Waiting
  #kind: 'owner' | 'lease' | undefined
  #sources: readonly Source[] = []

  constructor(options: ReaderOptions, settings: AssignmentSettings) {
    this.#options = options
    this.#settings = settings
    this.#waiting = new Waiting(settings.table, undefined, options.lease, options.clock)
  }

  async check(): Promise<void> {
    await this.#settings.check?.()
  }

  share(): Promise<readonly Source[]> {
    return this.#answered(this.#share())
  }

  waiting(): Waits | undefined {
    return this.#waiting.status()
  }

  rest(): void {
    this.#settings.rest?.()
  }

  async close(): Promise<void> {
    this.rest()
    const { leadership, member } = this.#settings
    await this.#answered(leadership.leave(member)).catch(() => {})
  }

  async #share(): Promise<readonly Source[]> {
    this.#kind ??= await this.#choose()
    if (!(await this.#join())) return []
    if (this.#sources.length === 1) return this.#sources
    const { leadership, member } = this.#settings
    const names = (await leadership.members()).map(({ name }) => name)
    const place = names.indexOf(member)
    return this.#sources.filter((_, shard) => shard % names.length === place)
  }

  /** Says that this relay lives. Returns whether it may read. */
  async #join(): Promise<boolean> {
    const { leadership, member } = this.#settings
    const mode = this.#kind === 'lease' ? 'lease' : `owner/${this.#options.shards}`
    const { excludedBy } = await leadership.join(member, mode, this.#options.lease)
    if (excludedBy === undefined) this.#waiting.over()
    else this.#waiting.for(excludedBy, `it reads as ${excludedBy.mode}, and this relay as ${mode}`)
    return excludedBy === undefined
  }

  /** The owner keeps order and is the fastest; with relays at work that compete, another joins them. */
  async #choose(): Promise<'owner' | 'lease'> {
    const { reader, shards } = this.#options
    const { leadership, table } = this.#settings
    const compete = reader === 'auto' && (await leadership.members()).some(({ mode }) => mode === 'lease')
    const kind = reader === 'lease' || compete ? 'lease' : 'owner'
    const chosen = compete ? 'relays that compete are at work already' : 'it keeps order per key and is the fastest'
    const why = reader === 'auto' ? chosen : 'as it was told'
    this.#sources =
      kind === 'lease'
        ? [this.#settings.competing(() => this.#join())]
        : Array.from({ length: shards }, (_, shard) => this.#settings.owner(shard))
    telemetry['relay.reader'].publish({ table, reader: kind, shards, why })
    return kind
  }

  #answered<T>(answer: Promise<T>): Promise<T> {
    return this.#settings.answered?.(answer) ?? answer
  }
}
