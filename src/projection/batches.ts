import type { Projection } from './definition.ts'
import { checkEnd } from './owned.ts'
import type { HeldBy, LogPage, Position } from './port.ts'
import { type Enricher, type Prepared, prepare } from './prepare.ts'
import type { Tail } from './tail.ts'

/** What lies between two positions of the log, as a projection needs it. */
export interface Batch {
  readonly from: Position
  readonly upTo: Position
  readonly heldBy: HeldBy | undefined
  /** See LogPage. */
  readonly before: LogPage['before']
  /** The id of the event at `upTo`, where it is known. */
  readonly last: string | undefined
  /** When its first event was written. */
  readonly since: Date | undefined
  readonly events: readonly Prepared[]
}

/**
 * Reads batches. One that failed is kept with what was found for it. While one is written the next is decoded, and the page
 * behind that is on its way: the server reads and writes while this process computes.
 */
export class Batches {
  readonly #projection: Projection
  readonly #tail: Tail
  readonly #enricher: Enricher
  #kept: Batch | undefined
  #ahead: { readonly from: Position; readonly read: Promise<Batch | undefined> } | undefined
  #page: { readonly from: Position; readonly read: Promise<LogPage | undefined> } | undefined

  constructor(projection: Projection, tail: Tail, enricher: Enricher) {
    this.#projection = projection
    this.#tail = tail
    this.#enricher = enricher
  }

  /** The batch behind this position. It is kept until `drop`, or until another position is asked for. */
  async after(position: Position): Promise<Batch> {
    if (this.#kept?.from === position) return this.#kept
    const ahead = this.#ahead?.from === position ? await this.#ahead.read : undefined
    this.#ahead = undefined
    const batch = ahead ?? (await this.#read(position))
    this.#kept = batch.upTo > batch.from ? batch : undefined
    return batch
  }

  /** Reads the next one, and asks for what its events need, while this one is written. */
  readAhead(from: Position, signal: AbortSignal): void {
    if (this.#ahead?.from !== from) this.#ahead = { from, read: this.#next(from, signal) }
  }

  async #next(from: Position, signal: AbortSignal): Promise<Batch | undefined> {
    const batch = await this.#read(from).catch(() => undefined)
    if (batch !== undefined && batch.upTo > from) {
      await this.#enricher.enrich(batch.events, signal)
      return batch
    }
    // Nothing was there, or it failed: there may be something when it is asked for.
    if (this.#ahead?.from === from) this.#ahead = undefined
    return undefined
  }

  /** What is kept was applied, or is somebody else's. */
  drop(): void {
    this.#kept = undefined
  }

  dropAll(): void {
    this.#kept = this.#ahead = this.#page = undefined
  }

  async ended(): Promise<void> {
    await this.#ahead?.read
    await this.#page?.read
    this.dropAll()
  }

  async #read(from: Position): Promise<Batch> {
    const { events, upTo, heldBy, before } = await this.#pageAfter(from)
    checkEnd(this.#projection, from, upTo)
    if (upTo > from) this.#page = { from: upTo, read: this.#tail.read(upTo).catch(() => undefined) }
    const last = events.at(-1)
    const about = { from, upTo, heldBy, before, last: last?.position === upTo ? last.id : undefined }
    return { ...about, since: events[0]?.recordedAt, events: await prepare(this.#projection, events) }
  }

  async #pageAfter(from: Position): Promise<LogPage> {
    const page = this.#page
    this.#page = undefined
    const read = page?.from === from ? await page.read : undefined
    // Nothing was there then, or it failed: there may be something by now.
    return read !== undefined && read.upTo > from ? read : this.#tail.read(from)
  }
}
