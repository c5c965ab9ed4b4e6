import { listOf, type RedisConnection, type RedisReply, textOf } from '../../drivers/redis/redis.ts'
import type { GroupSettings, Stream } from './member.ts'
import type { RefusedStreams } from './refused-streams.ts'

export interface ReaderEvents {
  /** A new entry, ours from now on. */
  readonly onEntry: (stream: Stream, id: string, fields: RedisReply) => void
  /** A read is over; `asked` is when it was sent, or `error` why it failed. */
  readonly onRead: (asked: number, error?: unknown) => void
}

/**
 * Reads new entries, one blocking XREADGROUP at a time, on a connection of its own. A read goes on when whoever wanted
 * it has stopped waiting: what it brings is ours, and there for the next who asks.
 */
export class StreamReader {
  readonly #settings: GroupSettings
  readonly #refused: RefusedStreams
  readonly #connection: RedisConnection
  readonly #consumer: string
  readonly #events: ReaderEvents
  #reading: Promise<void> | undefined
  /** How many more there is demand for. */
  #wanted = 1
  #stopped = false

  constructor(
    settings: GroupSettings,
    refused: RefusedStreams,
    connection: RedisConnection,
    consumer: string,
    events: ReaderEvents,
  ) {
    this.#settings = settings
    this.#refused = refused
    this.#connection = connection
    this.#consumer = consumer
    this.#events = events
  }

  /** The read that is under way. */
  get reading(): Promise<void> | undefined {
    return this.#reading
  }

  /** Nothing is read from now on; what is under way goes on. */
  stop(): void {
    this.#stopped = true
  }

  /** Sees to it that a read is under way, for so many, or for a batch when nobody said. */
  want(count?: number): void {
    if (count !== undefined) this.#wanted = count
    else if (this.#wanted < 1) this.#wanted = this.#settings.batch
    if (this.#reading === undefined) this.#start()
  }

  #start(): void {
    const count = Math.max(1, Math.min(this.#wanted, this.#settings.batch))
    const asked = this.#settings.clock.monotonic()
    const reading = this.#read(count)
      .then(
        () => undefined,
        (error: unknown) => error,
      )
      .then((error) => {
        if (this.#reading === reading) this.#reading = undefined
        this.#events.onRead(asked, error)
      })
    this.#reading = reading
  }

  async #read(count: number): Promise<void> {
    const { group, block, timeout } = this.#settings
    const streams = this.#refused.others
    const keys = streams.map(({ key }) => key)
    const args = ['xreadgroup', 'GROUP', group, this.#consumer, 'COUNT', String(count), 'BLOCK', String(block)]
    const command = [...args, 'STREAMS', ...keys, ...keys.map(() => '>')]
    const reply = await this.#connection.command(command, { key: keys[0]!, timeout: timeout + block })
    const groups = listOf(reply).map(listOf)
    const found = groups.reduce((sum, [, entries]) => sum + listOf(entries).length, 0)
    this.#wanted -= found
    // Where there is a whole batch there may be more: when more is wanted the server looks while this is decoded.
    if (found >= count && this.#wanted > 0 && !this.#stopped) this.#start()
    for (const [key, entries] of groups) {
      const stream = streams.length === 1 ? streams[0]! : streams.find((known) => known.key === textOf(key))!
      for (const entry of listOf(entries)) {
        const [id, fields] = listOf(entry)
        this.#events.onEntry(stream, textOf(id), fields!)
      }
    }
  }
}
