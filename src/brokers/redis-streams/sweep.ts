import { telemetry } from '../../core/index.ts'
import type { Claimed, GroupMember, GroupSettings, Stream } from './member.ts'

/** At most so many pages in one go, so that a take answers. */
const PAGES = 50
/** Longest list of ids in a warning. */
const NAMED = 5

export interface SweepOptions {
  /** Whose entries; '' for everybody's. */
  readonly owner: string
  readonly idle: number
  readonly charge: 0 | 1
  /** The pause between two sweeps. Absent: there is only one. */
  readonly every?: number
  readonly onEnd?: () => Promise<void>
}

/** Goes through the pending entries of all streams, page by page and as far as there is demand, and begins again. */
export class Sweep {
  /** When there is something to do again. */
  at = 0
  readonly #options: SweepOptions
  readonly #settings: GroupSettings
  readonly #member: GroupMember
  #stream = 0
  #start = '-'

  constructor(settings: GroupSettings, member: GroupMember, options: SweepOptions) {
    this.#settings = settings
    this.#member = member
    this.#options = options
  }

  async run(limit: number): Promise<Claimed[]> {
    const { owner, idle, charge, every, onEnd } = this.#options
    const found: Claimed[] = []
    for (let page = 0; page < PAGES && found.length < limit; page++) {
      const stream = this.#settings.streams[this.#stream]
      if (stream === undefined) {
        this.#stream = 0
        await onEnd?.()
        this.at = every === undefined ? Number.POSITIVE_INFINITY : this.#settings.clock.monotonic() + every
        break
      }
      const rest = { owner, idle, charge, limit: limit - found.length, start: this.#start }
      const { following, claimed, lost } = await this.#member.claim(stream, rest)
      if (lost.length > 0) tellLost(this.#settings, stream, lost)
      found.push(...claimed)
      this.#start = following === '' ? '-' : following
      if (following === '') this.#stream++
    }
    return found
  }
}

/** Somebody trimmed or deleted what the group had not handled: that must not pass in silence. */
export function tellLost({ where, group }: GroupSettings, stream: Stream, ids: readonly string[]): void {
  const named = ids.slice(0, NAMED).join(', ') + (ids.length > NAMED ? ', …' : '')
  const message =
    `${ids.length} entries of ${stream.key} were trimmed or deleted before group ${group} had handled them and are lost: ` +
    `${named}. Trim with trimmer(), which spares what a group still needs, not with MAXLEN`
  telemetry.warning.publish({ where, message })
}
