import { backoff, errorSummary, telemetry, WaybillError } from '../../core/index.ts'
import { isKind, isWrongServer, RedisError } from '../../drivers/redis/redis.ts'
import type { GivenBack, GroupMember, GroupSettings, Stream } from './member.ts'

/** Between two looks at a stream that is refused: 1 s, 2 s, … 60 s. */
const PAUSES = backoff()

/** Settlements of a stream that is refused, to be written once it is not. */
interface Owed {
  readonly done: string[]
  readonly back: GivenBack[]
}

export interface RefusedEvents {
  /** Sees to it that the group is there, or rejects with why the stream cannot be read. */
  readonly prepare: (stream: Stream) => Promise<void>
  /** The stream is read again, and these were given back. */
  readonly onBack: (stream: Stream, given: readonly GivenBack[]) => void
}

/**
 * Streams of a session that the server refuses, while it takes others: the key holds another type, or the right to it was
 * taken away. They are left out, told once, looked at again with growing pauses, and read again when nothing is wrong any
 * more. The last one is never left out: its refusals are those of the session.
 */
export class RefusedStreams {
  readonly #settings: GroupSettings
  readonly #member: GroupMember
  readonly #events: RefusedEvents
  readonly #refused = new Map<Stream, { at: number; failures: number }>()
  readonly #owed = new Map<Stream, Owed>()
  #looking: Promise<void> | undefined

  constructor(settings: GroupSettings, member: GroupMember, events: RefusedEvents) {
    this.#settings = settings
    this.#member = member
    this.#events = events
  }

  has(stream: Stream): boolean {
    return this.#refused.has(stream)
  }

  /** Those that are read. */
  get others(): readonly Stream[] {
    const { streams } = this.#settings
    return this.#refused.size === 0 ? streams : streams.filter((stream) => !this.#refused.has(stream))
  }

  add(stream: Stream, error: unknown): void {
    if (this.#refused.has(stream) || this.others.length === 1) return
    const { clock, where } = this.#settings
    this.#refused.set(stream, { at: clock.monotonic() + PAUSES(1), failures: 1 })
    const message = `the stream ${JSON.stringify(stream.key)} is refused and left out, the others are read; it is looked at again after 1 s, 2 s, … 60 s: ${errorSummary(error)}`
    telemetry.warning.publish({ where, message })
  }

  /** A refusal does not always say whose it is: each stream is asked. */
  async find(): Promise<void> {
    if (this.others.length === 1) return
    for (const stream of this.others) {
      try {
        await this.#member.position(stream)
        await this.#member.settle(stream, [])
      } catch (error) {
        // Any other error comes again with what is asked next.
        if (isAboutKey(error)) this.add(stream, error)
      }
    }
  }

  /** What was done stays done. The rest is given back, uncharged: its dead letter may be what is refused. */
  owe(stream: Stream, done: readonly string[], back: readonly GivenBack[]): void {
    const owed = this.#owed.get(stream) ?? { done: [], back: [] }
    owed.done.push(...done)
    owed.back.push(...back)
    this.#owed.set(stream, owed)
  }

  /** Looks at those whose turn it is; one look at a time. */
  async look(): Promise<void> {
    if (this.#refused.size === 0) return
    this.#looking ??= this.#look().finally(() => {
      this.#looking = undefined
    })
    await this.#looking
  }

  async #look(): Promise<void> {
    for (const [stream, refused] of this.#refused) {
      if (refused.at > this.#settings.clock.monotonic()) continue
      try {
        await this.#events.prepare(stream)
        // Also without any: it may be the dead letters that are refused.
        do await this.settleOwed(stream)
        while (this.#owed.has(stream))
        this.#refused.delete(stream)
      } catch (error) {
        if (!isRefusal(error)) throw error
        refused.at = this.#settings.clock.monotonic() + PAUSES(++refused.failures)
      }
    }
  }

  async settleOwed(stream: Stream): Promise<void> {
    const { done, back } = this.#owed.get(stream) ?? { done: [], back: [] }
    this.#owed.delete(stream)
    try {
      await this.#member.settle(stream, done, back, [], true)
    } catch (error) {
      this.owe(stream, done, back)
      throw error
    }
    this.#events.onBack(stream, back)
  }
}

/** The server has answered, and others may fare better. */
export function isRefusal(error: unknown): boolean {
  return isAboutKey(error) || (error instanceof RedisError && !isWrongServer(error))
}

/** It may be about one key among several. */
export function isAboutKey(error: unknown): boolean {
  if (error instanceof WaybillError && error.code === 'WRONG_KEY_TYPE') return true
  return isKind(error, 'WRONGTYPE') || isKind(error, 'NOPERM')
}
