import { setImmediate } from 'node:timers'
import {
  asError,
  type Classify,
  type Clock,
  checkOptions,
  classifier,
  classifyPublish,
  describe,
  type Message,
  onAbort,
  type RawMessage,
  systemClock,
  untilAborted,
  WaybillError,
} from '../core/index.ts'
import { type Pipe, PipeBuffer, pipe } from './pipe-buffer.ts'
import { checkOutcomes, OK, type Outcome, outcomeOf, type Publisher } from './publisher.ts'
import type { Demand } from './source.ts'

export type { GivenUp, Pipe } from './pipe-buffer.ts'

/** What `generate` asks for more. `signal` aborts when nobody waits any more; what still comes is kept for later. */
export type Generate<M extends Message> = (
  demand: Demand,
  signal: AbortSignal,
) => Iterable<M> | undefined | Promise<Iterable<M> | undefined>

/**
 * A source from a function that is asked for up to `demand.count` messages whenever there is room. When it returns
 * none, the flow waits longer and longer before it asks again; when it throws, the flow backs off. More than was asked
 * for is kept for the next time.
 */
export function generate<M extends Message>(name: string, next: Generate<M>): Pipe<M> {
  const buffer = new PipeBuffer<M>(name)
  let asking: Promise<void> | undefined
  const ask = async (demand: Demand, signal: AbortSignal): Promise<void> => {
    for (const message of (await next(demand, signal)) ?? []) buffer.add(message)
  }
  return pipe(name, buffer, async (demand, signal) => {
    if (buffer.size > 0) return
    // Not within `ask`: what throws at once has ended before it is kept here.
    asking ??= ask(demand, signal).finally(() => {
      asking = undefined
    })
    await untilAborted(asking, signal, () => {})
  })
}

/** A pipe that comes to an end. */
export interface FinitePipe<M extends Message = Message> extends Pipe<M> {
  /** Resolves when there is no more and everything is settled; rejects, then too, when the iterable threw. */
  readonly ended: Promise<void>
}

/**
 * A source from anything that can be iterated, at the pace of whoever takes: never more is asked for than there is
 * room for. An iterable that throws ends there: each take after that rejects with its error, and so does `ended`.
 */
export function fromIterable<M extends Message>(
  name: string,
  from: Iterable<M> | AsyncIterable<M>,
  options: { clock?: Clock } = {},
): FinitePipe<M> {
  checkOptions(`pipe ${name}`, options, { clock: true })
  const reader = new IterableReader<M>(name, from)
  return Object.assign(
    pipe(
      name,
      reader.buffer,
      (demand) => reader.fill(demand.count),
      (ms, signal) => reader.more(ms, signal, options.clock ?? systemClock),
    ),
    { ended: reader.ended },
  )
}

/** What a sink returns: nothing when all of it arrived, or one outcome per message. */
export type Sink = (
  messages: readonly RawMessage[],
  signal: AbortSignal,
) => void | readonly Outcome[] | Promise<void | readonly Outcome[]>

/**
 * A publisher from a function over batches. When it throws for one message alone, the error decides (Reject,
 * RetryLater, …). When it throws for several, nobody knows whose fault it was: the flow then sends them one by one.
 */
export function sink(write: Sink, options: { name?: string; ordered?: boolean; classify?: Classify } = {}): Publisher {
  checkOptions('sink', options, { name: true, ordered: true, classify: true })
  const kindOf = classifier(options.classify, classifyPublish)
  const name = options.name ?? (write.name || 'sink')
  return {
    name,
    features: { ordered: options.ordered ?? false },
    async publish(messages, signal) {
      try {
        const outcomes = await write(messages, signal)
        return outcomes === undefined ? messages.map(() => OK) : checkOutcomes(name, outcomes, messages.length)
      } catch (error) {
        const readable = asError(error)
        const bug = readable instanceof WaybillError && readable.code === 'BAD_PUBLISHER'
        if (bug || messages.length !== 1) throw error
        return [outcomeOf(error, kindOf)]
      }
    },
  }
}

/** Reads an iterable ahead, as far as the last take asked for. */
class IterableReader<M extends Message> {
  readonly buffer: PipeBuffer<M>
  readonly ended: Promise<void>
  readonly #iterator: Iterator<M> | AsyncIterator<M>
  readonly #sync: boolean
  #want = 0
  #reading: Promise<void> | undefined
  #exhausted = false
  #failure: { readonly error: unknown } | undefined
  readonly #waiting = new Set<() => void>()

  constructor(name: string, from: Iterable<M> | AsyncIterable<M>) {
    const given = from as Partial<Iterable<M> & AsyncIterable<M>> | undefined | null
    const iterator = given?.[Symbol.asyncIterator]?.() ?? given?.[Symbol.iterator]?.()
    if (iterator === undefined)
      throw new WaybillError(
        'INVALID_OPTION',
        `pipe ${name}: ${describe(from)} cannot be iterated; give a list, a generator or a stream`,
      )
    this.#iterator = iterator
    this.buffer = new PipeBuffer(name)
    this.#sync = given?.[Symbol.asyncIterator] === undefined
    this.ended = new Promise((resolve, reject) => {
      this.buffer.onChange = () => {
        for (const wake of this.#waiting) wake()
        if (!this.#exhausted || this.buffer.size > 0 || this.buffer.unsettled > 0) return
        if (this.#failure === undefined) resolve()
        else reject(this.#failure.error)
      }
    })
    this.ended.catch(() => {}) // whoever awaits it gets the error; it must not also end the process
  }

  async fill(want: number): Promise<void> {
    this.#want = want
    if (this.#sync) this.#readSync(this.#iterator as Iterator<M>)
    else {
      // What is there already joins; nobody waits for the rest. Only the take that begins to read races with it: every race
      // would stay in memory for as long as an iterator that is idle.
      if (this.#reading === undefined) await Promise.race([this.#begin(), turn()])
      else await turn()
    }
    if (this.#failure !== undefined && this.buffer.size === 0) throw this.#failure.error
  }

  /** Resolves when there may be more to take. */
  async more(ms: number, signal: AbortSignal, clock: Clock): Promise<void> {
    if (this.buffer.size > 0 || signal.aborted) return
    const changed = new AbortController()
    const wake = () => changed.abort(null)
    this.#waiting.add(wake)
    const forget = onAbort(signal, wake)
    await clock.sleep(ms, changed.signal)
    forget()
    this.#waiting.delete(wake)
  }

  #readSync(iterator: Iterator<M>): void {
    try {
      while (!this.#exhausted && this.buffer.size < this.#want) this.#accept(iterator.next())
    } catch (error) {
      this.#fail(error)
    }
  }

  #begin(): Promise<void> {
    this.#reading = this.#read()
    return this.#reading
  }

  async #read(): Promise<void> {
    try {
      while (!this.#exhausted && this.buffer.size < this.#want) this.#accept(await this.#iterator.next())
    } catch (error) {
      this.#fail(error)
    } finally {
      this.#reading = undefined
    }
  }

  #accept({ done, value }: IteratorResult<M>): void {
    if (!done) {
      this.buffer.add(value)
      return
    }
    this.#exhausted = true
    this.buffer.onChange()
  }

  #fail(error: unknown): void {
    this.#exhausted = true
    this.#failure = { error }
    this.buffer.onChange()
  }
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
