import { setMaxListeners } from 'node:events'
import {
  asError,
  type Backoff,
  backoff,
  type Clock,
  classify,
  errorSummary,
  type Message,
  telemetry,
  untilAborted,
  withoutData,
} from '../core/index.ts'
import { plainDead } from './refusal.ts'
import { type Delivery, type Session, type Settled, type Settlement, topicOfDelivery } from './source.ts'
import type { Condition } from './status.ts'

/** What becomes of settlements. */
export interface SettlerEvents<D> {
  /** The source knows of them; or, if not `written`, it never will: the session is over. */
  settled(batch: readonly Settled<D>[], written: boolean): void
  /** The source refused what was decided for this one. It is dead instead, and the source knows. */
  condemned(delivery: D, before: Settlement, reason: string): void
  /** The source refuses to hear of this one at all. It is tried again now and then, and nobody waits for it. */
  aside(delivery: D, settlement: Settlement): void
}

/** A batch that failed so often in a row, for a reason unknown, is tried in halves. */
const SPLIT_AFTER = 3

/** Then, and where others were written, so many failures in a row bring no pause: enough to halve any batch to the end. */
const AT_ONCE = 14

/**
 * Batched settlement: while one batch is being written the next gathers, so the batch size follows the load. Nothing is
 * dropped in silence, and nothing is repeated for ever in front of others (decision 0030):
 *
 * 1. A write that fails is repeated, since nobody knows whether it arrived. While everything fails, that is an outage.
 * 2. One that the source refuses, or that keeps failing for an unknown reason, is split in halves until the culprit is
 *    alone. The others are written.
 * 3. A culprit that was refused becomes `dead`, with a plain reason. One that was handled stays handled.
 * 4. If that is refused too, it is put aside: reported once, tried again after 1 s, 2 s, … 60 s.
 */
export class Settler<D extends Delivery<Message>> {
  readonly #flow: string
  readonly #session: Session<D>
  readonly #clock: Clock
  readonly #backoff: Backoff
  readonly #condition: Condition
  readonly #asideBackoff = backoff()
  readonly #events: SettlerEvents<D>
  readonly #patience = new AbortController()
  /** Resolves when the session is lost: a write that hangs then is nobody's concern any more. */
  readonly #over: AbortSignal
  #gathered: Settled<D>[] = []
  #batch: readonly Settled<D>[] = []
  /** What is left of batches that failed, in pieces. */
  #pieces: (readonly Settled<D>[])[] = []
  /** Put aside, with how often each was refused. */
  readonly #aside = new Map<D, { readonly settled: Settled<D>; readonly failures: number }>()
  /** To be dead-lettered because another settlement of theirs was refused; reported once that is written. */
  readonly #condemned = new Map<D, { before: Settlement; error: unknown; reason: string }>()
  /** Of those put aside, whose turn it is. */
  readonly #due: D[] = []
  #writing: Promise<void> | undefined
  #scheduled = false
  #ended = false

  constructor(
    flow: string,
    session: Session<D>,
    clock: Clock,
    pauses: Backoff,
    condition: Condition,
    events: SettlerEvents<D>,
  ) {
    this.#flow = flow
    this.#session = session
    this.#clock = clock
    this.#backoff = pauses
    this.#condition = condition
    this.#events = events
    this.#over = AbortSignal.any([session.lost, this.#patience.signal])
    // Whoever is put aside listens until its next try.
    setMaxListeners(0, this.#over)
  }

  settle(delivery: D, settlement: Settlement): void {
    this.#gathered.push([delivery, settlement])
    this.#schedule()
  }

  #schedule(): void {
    if (this.#scheduled || this.#writing !== undefined) return
    // Wait for the end of this turn: the other outcomes of the same batch join.
    this.#scheduled = true
    queueMicrotask(this.#begin)
  }

  /** Decided, and the source does not know yet. */
  get unwritten(): readonly D[] {
    const waiting = [...this.#batch, ...this.#pieces.flat(), ...this.#gathered].map(([delivery]) => delivery)
    return this.#aside.size === 0 ? waiting : [...new Set([...waiting, ...this.#aside.keys()])]
  }

  /** Resolves when everything gathered so far is written or put aside, or the session is lost. */
  async flushed(): Promise<void> {
    while (!this.#session.lost.aborted && (this.#scheduled || this.#writing !== undefined)) {
      if (this.#scheduled) this.#begin()
      await untilAborted(this.#writing ?? Promise.resolve(), this.#session.lost, () => {})
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
    if (this.#writing !== undefined || (this.#gathered.length === 0 && this.#due.length === 0)) return
    this.#writing = this.#write()
  }

  async #write(): Promise<void> {
    for (let writing = this.#next(); writing !== undefined; ) {
      const batch = this.#batch
      const failure = await writing
      if (failure !== undefined) {
        await this.#again(batch, failure)
        writing = this.#next()
        continue
      }
      // The next is on its way before anybody hears of this one: the source need not wait for what they make of it.
      writing = this.#next()
      this.#written(batch)
      writing ??= this.#next()
    }
    this.#writing = undefined
  }

  #next(): Promise<FailedWrite | undefined> | undefined {
    this.#batch = this.#gathered
    this.#gathered = []
    if (this.#batch.length === 0) this.#batch = this.#nextAside()
    return this.#batch.length === 0 ? undefined : this.#try(this.#batch)
  }

  /** `undefined`: it is written. */
  async #try(batch: readonly Settled<D>[]): Promise<FailedWrite | undefined> {
    if (this.#session.lost.aborted || this.#ended) return { error: undefined }
    const began = this.#clock.monotonic()
    try {
      const stale = await this.#session.settle(batch)
      if (batch.some(isDone)) this.#condition.succeededAt = began
      if (telemetry['flow.settled'].active) this.#publishSettled(batch, stale, this.#clock.monotonic() - began)
      return undefined
    } catch (thrown) {
      // A trigger of somebody else's may quote what it has seen.
      const away = classify(thrown) === 'down'
      const error = away ? asError(thrown) : withoutData(thrown, { data: batch.map(([{ message }]) => message.data) })
      const lost = this.#over.aborted
      telemetry['flow.settle_failed'].publish({ flow: this.#flow, count: batch.length, error, lost })
      return { error }
    }
  }

  /** A batch failed. Goes on until each of it is written or put aside, or the session is over. */
  async #again(batch: readonly Settled<D>[], failure: FailedWrite): Promise<void> {
    this.#batch = []
    this.#pieces = [batch]
    const suspects = new Suspects<D>()
    let failures = 0
    let pauses = 0
    let quick = 0
    let failed: FailedWrite | undefined = failure
    while (this.#pieces.length > 0) {
      const piece = this.#pieces[0]!
      failed ??= await this.#try(piece)
      if (failed === undefined) {
        failures = 0
        pauses = 0
        this.#condition.clear('settle')
        quick = AT_ONCE
        suspects.written++
        this.#pieces.shift()
        this.#written(piece)
        continue
      }
      if (this.#over.aborted || this.#ended) break
      const { error } = failed
      failed = undefined
      const refused = classify(error) === 'permanent'
      if (piece.length === 1 && (refused || this.#aside.has(piece[0]![0]) || suspects.isCulprit(piece[0]![0]))) {
        this.#refused(piece[0]!, error, refused)
        continue
      }
      failures++
      // With many culprits each pause would be one for everybody, again and again. One that is left alone shows nothing new.
      const atOnce = refused || (quick > 0 && this.#pieces.length > 1)
      quick = failures === SPLIT_AFTER ? AT_ONCE : Math.max(0, quick - 1)
      if (!atOnce) await this.#pause(error, this.#backoff(++pauses))
      if (atOnce || failures >= SPLIT_AFTER) this.#split(piece, suspects)
    }
    this.#condition.clear('settle')
    const left = this.#pieces.splice(0).flat()
    if (left.length > 0) this.#events.settled(left, false)
  }

  /** What is done cannot be written, so before long nothing moves. */
  async #pause(error: unknown, ms: number): Promise<void> {
    this.#condition.hinder('settle', 'failing', errorSummary(error), ms)
    await this.#clock.sleep(ms, this.#over)
  }

  /** The first piece, in halves. One that is alone goes behind the others: do they fare better? */
  #split(piece: readonly Settled<D>[], suspects: Suspects<D>): void {
    if (piece.length > 1) {
      const half = piece.length >> 1
      this.#pieces.splice(0, 1, piece.slice(0, half), piece.slice(half))
      return
    }
    suspects.add(piece[0]![0])
    this.#pieces.shift()
    if (this.#gathered.length > 0) this.#pieces.push(this.#gathered.splice(0))
    this.#pieces.push(piece)
  }

  /** The first piece is one alone, and the culprit. */
  #refused(settled: Settled<D>, error: unknown, refused: boolean): void {
    this.#pieces.shift()
    const plainer = refused ? this.#plainer(settled, error) : undefined
    if (plainer === undefined) this.#putAside(settled, error)
    else this.#pieces.unshift([plainer])
  }

  #written(batch: readonly Settled<D>[]): void {
    if (this.#aside.size > 0) for (const [delivery] of batch) this.#aside.delete(delivery)
    if (this.#condemned.size > 0) for (const [delivery] of batch) this.#publishCondemned(delivery)
    this.#events.settled(batch, true)
  }

  /** What can be written instead of what was refused: an error's text may be to blame, or a delay. */
  #plainer([delivery, before]: Settled<D>, error: unknown): Settled<D> | undefined {
    const plain = plainDead(before, error)
    if (plain === undefined) return undefined
    this.#condemned.set(delivery, { before, error, reason: plain.reason })
    return [delivery, plain]
  }

  #publishCondemned(delivery: D): void {
    const condemned = this.#condemned.get(delivery)
    if (condemned === undefined) return
    const { before, error, reason } = condemned
    this.#condemned.delete(delivery)
    this.#publishRefused(delivery, before, true, error)
    this.#events.condemned(delivery, before, reason)
  }

  #putAside(settled: Settled<D>, error: unknown): void {
    const [delivery, settlement] = settled
    const failures = (this.#aside.get(delivery)?.failures ?? 0) + 1
    this.#aside.set(delivery, { settled, failures })
    if (failures === 1) {
      this.#publishRefused(delivery, settlement, false, error)
      this.#events.aside(delivery, settlement)
    }
    this.#clock.sleep(this.#asideBackoff(failures), this.#over).then(() => {
      if (this.#over.aborted || this.#ended) return
      this.#due.push(delivery)
      this.#schedule()
    })
  }

  #nextAside(): readonly Settled<D>[] {
    const entry = this.#due.length === 0 ? undefined : this.#aside.get(this.#due.shift()!)
    return entry === undefined ? [] : [entry.settled]
  }

  #publishRefused(delivery: D, settlement: Settlement, dead: boolean, error: unknown): void {
    const { type, id, tenant } = delivery.message
    const about = { flow: this.#flow, type, id, tenant, topic: topicOfDelivery(delivery) }
    telemetry['settlement.refused'].publish({ ...about, settlement: settlement.kind, dead, error })
  }

  #publishSettled(batch: readonly Settled<D>[], stale: number, took: number): void {
    const counts = { done: 0, retry: 0, dead: 0, release: 0 }
    for (const [, settlement] of batch) counts[settlement.kind]++
    telemetry['flow.settled'].publish({ flow: this.#flow, ...counts, stale, took })
  }
}

function isDone([, settlement]: Settled<Delivery<Message>>): boolean {
  return settlement.kind === 'done'
}

interface FailedWrite {
  readonly error: unknown
}

/** Who failed alone for a reason unknown. If others are written and it fails again, it is the culprit. */
class Suspects<D> {
  /** How many pieces were written. */
  written = 0
  readonly #since = new Map<D, number>()

  add(delivery: D): void {
    if (!this.#since.has(delivery)) this.#since.set(delivery, this.written)
  }

  isCulprit(delivery: D): boolean {
    const since = this.#since.get(delivery)
    return since !== undefined && this.written > since
  }
}
