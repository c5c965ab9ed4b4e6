import { errorSummary, telemetry } from '../../core/index.ts'
import { isKind, isServerTrouble, isWrongServer, RedisError } from '../../drivers/redis/redis.ts'
import type { DeadEntry, GroupMember, GroupSettings, Stream } from './member.ts'
import type { RefusedStreams } from './refused-streams.ts'

/** How often a dead letter that is refused is tried again, in milliseconds. */
const LETTERS_EVERY = 1000

export interface BadEntry {
  readonly stream: Stream
  readonly entry: DeadEntry
}

/**
 * Entries that are ours, and nothing anybody could handle. They go to the dead letters, each on its own account. One that is
 * refused stays ours; the others go on meanwhile.
 */
export class BadEntries {
  readonly #settings: GroupSettings
  readonly #member: GroupMember
  readonly #entries: BadEntry[] = []
  /** Streams for dead letters that refuse one, and when that is tried again. */
  readonly #refused = new Map<string, number>()

  constructor(settings: GroupSettings, member: GroupMember) {
    this.#settings = settings
    this.#member = member
  }

  /** Those that are still ours. */
  get all(): readonly BadEntry[] {
    return this.#entries
  }

  add(stream: Stream, entry: DeadEntry): void {
    this.#entries.push({ stream, entry })
  }

  async bury(leftOut: RefusedStreams): Promise<void> {
    const now = this.#settings.clock.monotonic()
    for (const bad of [...this.#entries]) {
      const { stream, entry } = bad
      if (leftOut.has(stream)) continue
      const refusedUntil = this.#refused.get(stream.letters)
      if (refusedUntil !== undefined && now < refusedUntil) continue
      try {
        await this.#member.settle(stream, [], [], [entry])
      } catch (error) {
        if (!isRefusal(error)) throw error
        if (refusedUntil === undefined) this.#publishRefused(stream, error)
        this.#refused.set(stream.letters, now + LETTERS_EVERY)
        continue
      }
      this.#refused.delete(stream.letters)
      this.#entries.splice(this.#entries.indexOf(bad), 1)
      const { id, reason, attempts } = entry
      // Its type could not be decoded.
      const about = { type: '', id, reason, attempt: attempts + 1, tenant: undefined }
      telemetry['message.dead'].publish({ flow: this.#settings.where, ...about })
    }
  }

  #publishRefused({ letters }: Stream, error: RedisError): void {
    const { where } = this.#settings
    const message = `an entry that cannot be decoded stays pending, because its dead letter is refused; that is tried again every second: ${errorSummary(error)} (stream ${JSON.stringify(letters)})`
    telemetry.warning.publish({ where, message })
  }
}

/** The server has answered, and it is neither its own trouble nor about the group: only this letter is not taken. */
function isRefusal(error: unknown): error is RedisError {
  if (!(error instanceof RedisError) || isServerTrouble(error) || isWrongServer(error)) return false
  return !isKind(error, 'NOGROUP')
}
