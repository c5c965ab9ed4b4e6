import { telemetry } from '../../core/index.ts'
import type { Demand } from '../../flow/index.ts'
import { sizeOf } from './encoding.ts'
import { type ClaimedEntry, type GivenBack, type GroupMember, type GroupSettings, PAGE, type Stream } from './member.ts'
import type { RefusedStreams } from './refused-streams.ts'
import { RETURNED } from './scripts.ts'

/** How often to look for what other sessions gave back. What this one gave back it knows by itself. */
const LOOK_EVERY = 1000
/** Members that own nothing are removed when they were silent for so long. */
const RETIRE_AFTER = 3_600_000

interface Due {
  readonly at: number
  readonly stream: Stream
  readonly id: string
  /** Its delivery count, as it was given back. */
  readonly count: number
}

/** A consumer whose entries are to be taken over at once. */
export interface Predecessor {
  readonly consumer: string
  /** It died with them, so they are charged; or only its connection did. */
  readonly charge: 0 | 1
  /** Nothing of it is left. */
  readonly onEnd?: () => void
}

/**
 * Pending entries this session may have now. First what it gave back itself and is due, then by turns:
 *
 * 1. what its predecessors left: earlier sessions of this process, or of this stable name;
 * 2. what others gave back and is due;
 * 3. what somebody let lie for too long: the reclaimer.
 *
 * It asks when there is demand and never ahead of it.
 */
export class EntryClaims {
  readonly #settings: GroupSettings
  readonly #member: GroupMember
  readonly #refused: RefusedStreams
  readonly #sweeps: Sweep[]
  /** This one, and those it follows. */
  readonly #known: Set<string>
  /** Soonest last. */
  #dues: Due[] = []

  /** Whose turn is first: one with many entries must not keep the others waiting. */
  #turn = 0

  /** `onSwept` is called each time all pending entries have been looked at. */
  constructor(
    settings: GroupSettings,
    member: GroupMember,
    refused: RefusedStreams,
    predecessors: readonly Predecessor[],
    onSwept: () => Promise<void>,
  ) {
    this.#settings = settings
    this.#member = member
    this.#refused = refused
    this.#known = new Set([member.consumer])
    const { every, idle } = settings
    this.#sweeps = [
      new Sweep(settings, member, refused, { owner: RETURNED, idle: 0, charge: 0, every: LOOK_EVERY }),
      new Sweep(settings, member, refused, {
        owner: '',
        idle,
        charge: 1,
        every,
        onEnd: async () => {
          await this.#retire(RETIRE_AFTER)
          await onSwept()
        },
      }),
    ]
    this.follow(predecessors)
  }

  /** Takes over what these left, unless it is known of them. */
  follow(predecessors: readonly Predecessor[]): void {
    for (const { consumer, charge, onEnd } of predecessors) {
      if (this.#known.has(consumer)) continue
      this.#known.add(consumer)
      const end = async () => {
        await this.#retire(0, consumer)
        onEnd?.()
      }
      const options = { owner: consumer, idle: 0, charge, onEnd: end }
      // Before the two that everybody has.
      this.#sweeps.splice(-2, 0, new Sweep(this.#settings, this.#member, this.#refused, options))
    }
  }

  /** When there may be something, as the clock's monotonic time. */
  get nextAt(): number {
    return Math.min(this.#dues.at(-1)?.at ?? Number.POSITIVE_INFINITY, ...this.#sweeps.map((sweep) => sweep.at))
  }

  /** It was given back and is due after so many milliseconds. */
  expect(stream: Stream, { id, after, count }: GivenBack): void {
    // One more: the server counts whole milliseconds.
    const at = after === 0 ? 0 : this.#settings.clock.monotonic() + after + 1
    let low = 0
    for (let high = this.#dues.length; low < high; ) {
      const middle = (low + high) >> 1
      if (this.#dues[middle]!.at > at) low = middle + 1
      else high = middle
    }
    this.#dues.splice(low, 0, { at, stream, id, count })
  }

  /** Each is given to `accept` as soon as it is ours: a claim that is refused must not cost what those before it brought. */
  async find({ count, bytes }: Demand, accept: (entry: ClaimedEntry) => void): Promise<void> {
    const room = new ClaimRoom(count, bytes, accept)
    await this.#takeDue(room)
    this.#turn++
    for (let i = 0; i < this.#sweeps.length && !room.full; i++) {
      const sweep = this.#sweeps[(this.#turn + i) % this.#sweeps.length]!
      if (sweep.at <= this.#settings.clock.monotonic()) await sweep.run(room)
    }
  }

  async #takeDue(room: ClaimRoom): Promise<void> {
    const now = this.#settings.clock.monotonic()
    const due: Due[] = []
    while (due.length < Math.min(room.count, PAGE) && (this.#dues.at(-1)?.at ?? now + 1) <= now)
      due.push(this.#dues.pop()!)
    for (const stream of this.#refused.others) {
      const ids = due.filter((one) => one.stream === stream)
      if (ids.length === 0) continue
      // Whoever else has one of them by now is working on it.
      const idle = Number.MAX_SAFE_INTEGER
      const rest = { owner: '', idle, charge: 0, limit: ids.length, bytes: room.bytes, ids } as const
      const { following, claimed, lost } = await this.#member.claim(stream, rest)
      if (lost.length > 0) publishLost(this.#settings, stream, lost)
      room.take(claimed)
      // There was no room for these.
      if (following !== '') this.#dues.push(...ids.slice(ids.findIndex(({ id }) => id === following)).reverse())
    }
  }

  async #retire(idle: number, only?: string): Promise<void> {
    for (const stream of this.#refused.others) await this.#member.retire(stream, idle, only)
  }
}

/** How much more may be claimed, and who gets it. */
class ClaimRoom {
  count: number
  bytes: number
  readonly #accept: (entry: ClaimedEntry) => void

  constructor(count: number, bytes: number, accept: (entry: ClaimedEntry) => void) {
    this.count = count
    this.bytes = bytes
    this.#accept = accept
  }

  get full(): boolean {
    return this.count <= 0 || this.bytes <= 0
  }

  take(claimed: readonly ClaimedEntry[]): void {
    for (const entry of claimed) {
      this.count--
      this.bytes -= sizeOf(entry.fields)
      this.#accept(entry)
    }
  }
}

/** At most so many pages in one go, so that a take returns. */
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
  readonly #refused: RefusedStreams
  #stream = 0
  #start = '-'
  /** It has passed over a stream that is refused. */
  #leftOut = false

  constructor(settings: GroupSettings, member: GroupMember, refused: RefusedStreams, options: SweepOptions) {
    this.#settings = settings
    this.#member = member
    this.#refused = refused
    this.#options = options
  }

  async run(room: ClaimRoom): Promise<void> {
    const { owner, idle, charge, every, onEnd } = this.#options
    for (let page = 0; page < PAGES && !room.full; page++) {
      const stream = this.#settings.streams[this.#stream]
      if (stream === undefined) {
        this.#stream = 0
        // Where there is only one it goes on until it has been through all of them.
        const unfinished = this.#leftOut && every === undefined
        this.#leftOut = false
        if (!unfinished) await onEnd?.()
        const pause = unfinished ? LOOK_EVERY : (every ?? Number.POSITIVE_INFINITY)
        this.at = this.#settings.clock.monotonic() + pause
        break
      }
      if (this.#refused.has(stream)) {
        this.#leftOut = true
        this.#start = '-'
        this.#stream++
        continue
      }
      const rest = { owner, idle, charge, limit: room.count, bytes: room.bytes, start: this.#start }
      const { following, claimed, lost } = await this.#member.claim(stream, rest)
      if (lost.length > 0) publishLost(this.#settings, stream, lost)
      room.take(claimed)
      this.#start = following === '' ? '-' : following
      if (following === '') this.#stream++
    }
  }
}

/** Somebody trimmed or deleted what the group had not handled: that must not pass in silence. */
export function publishLost({ where, group }: GroupSettings, stream: Stream, ids: readonly string[]): void {
  const named = ids.slice(0, NAMED).join(', ') + (ids.length > NAMED ? ', …' : '')
  const message =
    `${ids.length} entries of ${stream.key} were trimmed or deleted before group ${group} had handled them and are lost: ` +
    `${named}. Trim with trimmer(), which spares what a group still needs, not with MAXLEN`
  telemetry.warning.publish({ where, message })
}
