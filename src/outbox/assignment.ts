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

/** Among relays that compete, the first by name reports for all: whether this one is, as of `asked`, and while that can be relied on. */
interface Rank {
  readonly first: boolean
  readonly asked: number
  readonly from: number
  readonly until: number
}

/**
 * Which part of an outbox a relay reads, among many relays: all of it, as its owner or as one of those that compete; or
 * its part of the shards, which are dealt out to the live members by their names.
 */
export class Assignment implements Reader {
  readonly #options: ReaderOptions
  readonly #settings: AssignmentSettings
  readonly #waiting: Waiting
  #kind: 'owner' | 'lease' | undefined
  #sources: readonly Source[] = []
  #rank: Rank | undefined
  /** Who has all the shards, while this relay has none. */
  #others: Waits | undefined

  constructor(options: ReaderOptions, settings: AssignmentSettings) {
    this.#options = options
    this.#settings = settings
    this.#waiting = new Waiting(settings.table, undefined, options.lease, options.clock)
  }

  async check(): Promise<void> {
    await this.#settings.check?.()
  }

  assignment(): Promise<readonly Source[]> {
    return this.#answered(this.#assign())
  }

  get competes(): boolean {
    return this.#kind === 'lease'
  }

  leads(): boolean | undefined {
    const now = this.#options.clock.monotonic()
    if (this.#rank === undefined || now > this.#rank.until) return undefined
    return this.#rank.first && now >= this.#rank.from
  }

  waiting(): Waits | undefined {
    return this.#waiting.status() ?? this.#others
  }

  rest(): void {
    this.#settings.rest?.()
  }

  async close(): Promise<void> {
    this.#rank = undefined
    this.rest()
    const { leadership, member } = this.#settings
    await this.#answered(leadership.leave(member)).catch(() => {})
  }

  async #assign(): Promise<readonly Source[]> {
    this.#kind ??= await this.#choose()
    const asked = this.#options.clock.monotonic()
    if (!(await this.#join())) {
      this.#rank = undefined
      return []
    }
    if (this.#sources.length === 1 && this.#kind === 'owner') return this.#sources
    const { leadership, member } = this.#settings
    const names = (await leadership.members()).map(({ name }) => name)
    const place = names.indexOf(member)
    if (this.#kind === 'lease') {
      this.#rank = this.#ranked(asked, place, names.length)
      return this.#sources
    }
    const mine = this.#sources.filter((_, shard) => shard % names.length === place)
    this.#others = mine.length > 0 ? undefined : await this.#holders()
    return mine
  }

  async #holders(): Promise<Waits | undefined> {
    const { leadership, member } = this.#settings
    const terms = (await leadership.terms()).filter(({ holder }) => holder !== member)
    if (terms.length === 0) return undefined
    const until = new Date(this.#options.clock.now() + Math.min(...terms.map(({ expiresIn }) => expiresIn)))
    const holders = [...new Set(terms.map(({ holder }) => holder))].join(', ')
    const reason = `other relays read all of it: ${holders}, the first until ${until.toISOString()} unless it is renewed`
    return { reason, until }
  }

  /** Two must not report at once: whoever comes waits for as long as another may still think that it is the first. */
  #ranked(asked: number, place: number, members: number): Rank {
    const { lease, clock } = this.#options
    const now = clock.monotonic()
    const valid = (lease * 2) / 3
    const before = this.#rank
    // It has been a member since then: what it wrote at that time has not run out.
    const stayed = before !== undefined && now - before.asked < lease
    const from = stayed ? before.from : members === 1 ? now : now + valid
    return { first: place === 0, asked, from, until: asked + valid }
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
    const why = reader === 'auto' ? chosen : 'as its options say'
    this.#sources =
      kind === 'lease'
        ? [{ ...this.#settings.competing(() => this.#join()), waiting: this.#waiting.status }]
        : Array.from({ length: shards }, (_, shard) => this.#owned(shard))
    telemetry['relay.reader'].publish({ table, reader: kind, shards, why })
    return kind
  }

  /** Whoever owns the first shard reports for the whole. Each change of owner is published. */
  #owned(shard: number): Source {
    const { table, member } = this.#settings
    const source = this.#settings.owner(shard)
    return {
      ...source,
      leads: shard === 0,
      open: async (signal) => {
        const session = await source.open(signal)
        if (session !== undefined) telemetry['relay.leads'].publish({ table, shard, holder: member })
        return session
      },
    }
  }

  #answered<T>(answer: Promise<T>): Promise<T> {
    return this.#settings.answered?.(answer) ?? answer
  }
}
