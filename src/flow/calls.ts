import { sharedController, timedCall, tooLong } from '../core/deadlines.ts'
import { asError, blameless, type Clock, type Message, promiseOf } from '../core/index.ts'
import type { HandleMany, HandleOne, Step } from './flow-options.ts'
import { checkedOutcome, OK, type Outcome, outcomeOf } from './publisher.ts'
import type { RetryPolicy } from './retry-policy.ts'
import type { Delivery } from './source.ts'
import { type CallGroup, TimeLimit } from './time-limit.ts'

/**
 * One call of the step. Calls are reused, so that a message costs no closures. Their callbacks must therefore be called
 * once per use: they are given only to native promises (`promiseOf`).
 */
export class Call<D extends Delivery<Message>> {
  /** What the step was given. */
  run: D[] = []
  /** It is in flight. Whatever comes from a call that is not busy came too late. */
  busy = false
  /** Calls are numbered as they go out. */
  number = 0
  /** How many of its run failed before while others arrived; see Window. They are its first. */
  marked = 0
  /** Nothing else is in flight, so what happens now is this message's doing. */
  alone = false
  /** The window's generation in which it went out. */
  generation = 0
  /** When it went out, if somebody listens. */
  began = 0
  /** With which calls it shares its time limit, while it is pending. */
  group: CallGroup | undefined = undefined
  /** For promises: the result for one message, the end of `after`, and an error of either. */
  readonly answered: (result: unknown) => void
  readonly succeeded: () => void
  readonly failed: (error: unknown) => void

  constructor(
    onAnswer: (call: Call<D>, result: unknown) => void,
    onSuccess: (call: Call<D>) => void,
    onFailure: (call: Call<D>, error: unknown) => void,
  ) {
    this.answered = (result) => onAnswer(this, result)
    this.succeeded = () => onSuccess(this)
    this.failed = (error) => onFailure(this, error)
  }
}

export interface CallSettings<D extends Delivery<Message>> {
  readonly step: Step<D>
  /** How long one call may take, in milliseconds. A handler has failed then, a batch is `down`. `undefined`: for ever. */
  readonly timeout: number | undefined
  readonly retry: RetryPolicy
  readonly clock: Clock
}

export interface CallEvents<D extends Delivery<Message>> {
  /** A call came back. `outcomes`: one for each message; `undefined` when all have arrived. */
  returned(call: Call<D>, outcomes: readonly Outcome[] | undefined): void
  /** That is dealt with: there is room for another call. */
  free(): void
}

/** Calls the step, within its time limit, and knows which calls are in flight. */
export class Calls<D extends Delivery<Message>> {
  /** How many messages are in flight. */
  inFlight = 0
  /** How many of them are marked; see Window. */
  markedInFlight = 0
  /** One is in flight that goes alone. */
  alone = false
  readonly #settings: CallSettings<D>
  readonly #events: CallEvents<D>
  readonly #abort = sharedController()
  readonly #limit: TimeLimit | undefined
  readonly #all: Call<D>[] = []
  readonly #unused: Call<D>[] = []

  constructor(settings: CallSettings<D>, events: CallEvents<D>) {
    const { step, timeout, clock } = settings
    this.#settings = settings
    this.#events = events
    if (timeout !== undefined && 'each' in step) {
      this.#limit = new TimeLimit(this.signal, timeout, clock, (group) => this.#timeIsUp(group))
    }
  }

  /** Aborts when what is in flight is to give up. */
  get signal(): AbortSignal {
    return this.#abort.signal
  }

  /** How many calls are in flight. */
  get count(): number {
    return this.#all.length - this.#unused.length
  }

  /** The number of the oldest call in flight. */
  get oldest(): number {
    return this.#all.reduce((oldest, { busy, number }) => (busy && number < oldest ? number : oldest), Infinity)
  }

  get deliveries(): D[] {
    return this.#all.flatMap((call) => (call.busy ? call.run : []))
  }

  /** A call to be filled. */
  next(): Call<D> {
    const unused = this.#unused.pop()
    if (unused !== undefined) return unused
    const call = new Call<D>(this.#answered, this.#succeeded, this.#failed)
    this.#all.push(call)
    return call
  }

  /** It is filled, and counts as in flight. */
  begin(call: Call<D>, alone: boolean): void {
    call.busy = true
    call.alone = alone
    this.alone = alone
    this.inFlight += call.run.length
    this.markedInFlight += call.marked
  }

  /** It did not go out after all. Returns whether it is still ours. */
  cancel(call: Call<D>): boolean {
    if (!this.#landed(call)) return false
    this.#unused.push(call)
    return true
  }

  run(call: Call<D>, began: number): void {
    const { step } = this.#settings
    call.began = began
    if ('each' in step) this.#runOne(call, step.each)
    else this.#runBatch(call, step.batch)
  }

  /** Asks the calls in flight to stop. */
  abort(reason: unknown): void {
    this.#abort.abort(reason)
  }

  /** Forgets what is in flight, and returns it. What still comes from it is ignored. */
  abandon(): D[] {
    const deliveries = this.deliveries
    for (const call of this.#all) call.busy = false
    this.inFlight = 0
    return deliveries
  }

  /** Nothing goes out for now: no timer is left that would keep a process from ending. */
  quiet(): void {
    this.#limit?.quiet()
  }

  #runOne(call: Call<D>, each: HandleOne<D>): void {
    let result: unknown
    let promise: Promise<unknown> | undefined
    const group = this.#limit?.group()
    try {
      result = each(call.run[0]!, group === undefined ? this.signal : group.signal)
      promise = promiseOf(result)
    } catch (error) {
      this.#failed(call, error)
      return
    }
    if (promise === undefined) {
      this.#answered(call, result)
      return
    }
    if (group !== undefined) {
      call.group = group
      this.#limit!.begin(group)
    }
    promise.then(call.answered, call.failed)
  }

  async #runBatch(call: Call<D>, batch: HandleMany<D>): Promise<void> {
    const { run } = call
    let failures: readonly Outcome[] | undefined
    try {
      failures = failuresAmong(await this.#timed(run, batch), run.length)
    } catch (thrown) {
      const error = asError(thrown)
      failures = run.map(() => ({ kind: 'down', error }))
    }
    this.#return(call, failures)
  }

  /** A batch that takes too long is `down`: whether it arrived is unknown, and nobody is charged. */
  #timed(run: readonly D[], batch: HandleMany<D>): ReturnType<HandleMany<D>> {
    const { timeout, clock } = this.#settings
    if (timeout === undefined) return batch(run, this.signal)
    return timedCall(`publishing ${run.length} messages`, timeout, clock, this.signal, (inner) => batch(run, inner))
  }

  readonly #answered = (call: Call<D>, result: unknown): void => {
    if (this.#cameLate(call)) return
    this.#inTime(call)
    const { after } = this.#settings.step as { after?: (result: unknown) => unknown }
    if (result === undefined || after === undefined || !call.busy) {
      this.#return(call, undefined)
      return
    }
    let more: Promise<unknown> | undefined
    try {
      more = promiseOf(after(result))
    } catch (error) {
      this.#failed(call, error)
      return
    }
    if (more === undefined) this.#return(call, undefined)
    else more.then(call.succeeded, call.failed)
  }

  readonly #succeeded = (call: Call<D>): void => this.#return(call, undefined)

  readonly #failed = (call: Call<D>, error: unknown): void => {
    // A call that was asked to stop may know better: that it waited for something that is not its message's fault.
    if (call.group?.over && !blameless(asError(error)) && this.#cameLate(call)) return
    this.#inTime(call)
    this.#return(call, [outcomeOf(error, this.#settings.retry.classify)])
  }

  /** It has returned; its outputs take the publisher's time. */
  #inTime(call: Call<D>): void {
    if (call.group === undefined) return
    this.#limit!.end(call.group)
    call.group = undefined
  }

  /** Its time was up just before. */
  #cameLate(call: Call<D>): boolean {
    if (call.group?.over !== true) return false
    this.#late(call)
    return true
  }

  #timeIsUp(group: CallGroup): void {
    for (const call of this.#all.filter((one) => one.busy && one.group === group)) this.#late(call)
  }

  /**
   * A handler took too long: its message has failed, and its place is free. The handler may go on in the background, so a
   * transaction inside looks at its signal before it commits. Nobody waits for it, and its late result is ignored.
   */
  #late(call: Call<D>): void {
    this.#inTime(call)
    // Its callbacks may still be called, so it is never used again.
    this.#all.splice(this.#all.indexOf(call), 1)
    const error = tooLong(`handling ${call.run[0]!.message.type}`, this.#settings.timeout!)
    if (this.#landed(call)) this.#events.returned(call, [outcomeOf(error, this.#settings.retry.classify)])
    this.#events.free()
  }

  #return(call: Call<D>, outcomes: readonly Outcome[] | undefined): void {
    if (!this.#landed(call)) return
    this.#events.returned(call, outcomes)
    this.#unused.push(call)
    this.#events.free()
  }

  /** False if the result no longer matters: its messages were given back. */
  #landed(call: Call<D>): boolean {
    if (!call.busy) return false
    call.busy = false
    this.inFlight -= call.run.length
    this.markedInFlight -= call.marked
    if (call.alone) this.alone = false
    return true
  }
}

/** `undefined` when all of them arrived. Throws for what is not one outcome per message. */
export function failuresAmong(outcomes: readonly Outcome[], count: number): readonly Outcome[] | undefined {
  if (!Array.isArray(outcomes) || outcomes.length !== count) {
    const given = Array.isArray(outcomes) ? `${outcomes.length} outcomes` : 'no list of outcomes'
    throw new TypeError(`the step returned ${given} for ${count} messages; it must return one each`)
  }
  for (const outcome of outcomes) if (outcome !== OK) return checkedOutcomes(outcomes)
  return undefined
}

function checkedOutcomes(outcomes: readonly Outcome[]): readonly Outcome[] | undefined {
  const checked = outcomes.map(checkedOutcome)
  return checked.every((outcome) => outcome === OK) ? undefined : checked
}
