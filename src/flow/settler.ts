import { asError, type Backoff, type Clock, type Message, type Settlement, telemetry } from '../core/index.ts'
import type { Delivery, Session, Settled } from './source.ts'

/**
 * Batched settlement: while one batch is being written the next gathers, so the batch size follows the load. A write
 * that fails is repeated until it succeeds or the session is lost; nothing is dropped in silence.
 */
export class Settler<D extends Delivery<Message>> {
  readonly #flow: string
  readonly #session: Session<D>
  readonly #clock: Clock
  readonly #backoff: Backoff
  readonly #onSettled: (batch: readonly Settled<D>[], written: boolean) => void
  readonly #patience = new AbortController()
  /** Resolves when the session is lost: a write that hangs then is nobody's concern any more. */
  readonly #lost: Promise<void>
  readonly #over: AbortSignal
  #gathered: Settled<D>[] = []
  #batch: readonly Settled<D>[] = []
  #writing: Promise<void> | undefined
  #scheduled = false
  #ended = false

  constructor(
    flow: string,
    session: Session<D>,
    clock: Clock,
    backoff: Backoff,
    onSettled: (batch: readonly Settled<D>[], written: boolean) => void,
  ) {
    this.#flow = flow
    this.#session = session
    this.#clock = clock
    this.#backoff = backoff
    this.#onSettled = onSettled
    this.#over = AbortSignal.any([session.lost, this.#patience.signal])
    this.#lost = new Promise((resolve) => {
      if (session.lost.aborted) resolve()
      else session.lost.addEventListener('abort', () => resolve(), { once: true })
    })
  }

  settle(delivery: D, settlement: Settlement): void {
    this.#gathered.push([delivery, settlement])
    if (this.#scheduled || this.#writing !== undefined) return
    // Wait for the end of this turn: the other outcomes of the same batch join.
    this.#scheduled = true
    queueMicrotask(this.#begin)
  }

  /** Decided, and the source does not know yet. */
  get unwritten(): readonly Settled<D>[] {
    return [...this.#batch, ...this.#gathered]
  }

  /** Resolves when everything gathered so far is written, or the session is lost. */
  async flushed(): Promise<void> {
    while (!this.#session.lost.aborted && (this.#scheduled || this.#writing !== undefined)) {
      if (this.#scheduled) this.#begin()
      await Promise.race([this.#writing, this.#lost])
    }
  }

  /** From now on a write that fails is not repeated more than once. */
  lastTry(): void {
    this.#patience.abort()
  }

  /** The session is about to be closed: nothing more is written to it. */
  end(): void {
    this.#ended = true
  }

  readonly #begin = (): void => {
    this.#scheduled = false
    if (this.#writing !== undefined || this.#gathered.length === 0) return
    this.#writing = this.#write()
  }

  async #write(): Promise<void> {
    for (let writing = this.#next(); writing !== undefined; ) {
      const batch = this.#batch
      const written = await writing
      // The next is on its way before anybody hears of this one: the source need not wait for what they make of it.
      writing = this.#next()
      this.#onSettled(batch, written)
      writing ??= this.#next()
    }
    this.#writing = undefined
  }

  #next(): Promise<boolean> | undefined {
    this.#batch = this.#gathered
    this.#gathered = []
    return this.#batch.length === 0 ? undefined : this.#writeBatch(this.#batch)
  }

  /** Whether the source knows now. */
  async #writeBatch(batch: readonly Settled<D>[]): Promise<boolean> {
    const { lost } = this.#session
    const over = this.#over
    for (let failures = 1; !lost.aborted && !this.#ended; failures++) {
      const began = this.#clock.monotonic()
      try {
        const stale = await this.#session.settle(batch)
        if (telemetry['flow.settled'].active) this.#tell(batch, stale, this.#clock.monotonic() - began)
        return true
      } catch (error) {
        telemetry['flow.settle_failed'].publish({
          flow: this.#flow,
          count: batch.length,
          error: asError(error),
          lost: over.aborted,
        })
        if (over.aborted) break
        await this.#clock.sleep(this.#backoff(failures), over)
      }
    }
    return false
  }

  #tell(batch: readonly Settled<D>[], stale: number, took: number): void {
    const counts = { done: 0, retry: 0, dead: 0, release: 0 }
    for (const [, settlement] of batch) counts[settlement.kind]++
    telemetry['flow.settled'].publish({ flow: this.#flow, ...counts, stale, took })
  }
}
