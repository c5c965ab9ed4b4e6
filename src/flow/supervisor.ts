import {
  aborted,
  asError,
  type Backoff,
  type BackoffOptions,
  backoff,
  type Clock,
  checkOptions,
  type Duration,
  errorSummary,
  milliseconds,
  telemetry,
  WaybillError,
  withDeadline,
} from '../core/index.ts'
import { parentStatus, type Status } from './status.ts'
import { PHASES, type Phase, type Stoppable, Worker } from './worker.ts'

/** What becomes of a child that ends with an error: it is started again after a pause, or all of them are stopped. */
export type OnFailure = 'restart' | 'fatal'

/** One that has run for so long, in milliseconds, and then fails, is paused for as if for the first time. */
const STEADY = 60_000

class Child {
  /** Aborted when it is removed, or all are stopped: it is not started again. */
  over = new AbortController()
  begun = false
  begunAt = 0
  failures = 0
  /** It ended with an error, and is not started again yet. */
  failed: { readonly reason: string; readonly since: Date; readonly retryAt: Date | undefined } | undefined
  readonly member: Worker | Stoppable
  readonly onFailure: OnFailure

  constructor(member: Worker | Stoppable, onFailure: OnFailure) {
    this.member = member
    this.onFailure = onFailure
  }

  async stop(): Promise<void> {
    this.over.abort()
    // One that has ended by itself would report its error again.
    if (this.failed === undefined || isStarted(this.member)) await this.member.stop()
  }

  status(): Status | undefined {
    const status = this.member.status?.()
    if (status === undefined || this.failed === undefined || status.state !== 'stopped') return status
    const { reason, since, retryAt } = this.failed
    return { ...status, state: 'failing', reason, since, ...(retryAt === undefined ? {} : { retryAt }) }
  }
}

/**
 * A worker that is made of others.
 *
 * 1. `start` starts them by phase, what others need first. One that cannot start is the error of `start`.
 * 2. One that ends with an error later is started again after a pause that grows; or, if that is `fatal`, it ends all.
 * 3. `stop`, and whatever else ends it, stops them by phase, in the order of a whole process.
 */
export abstract class Parent<Round = unknown> extends Worker<Round> {
  readonly #children = new Map<Worker | Stoppable, Child>()
  readonly #backoff: Backoff
  /** How long the stop of one child is waited for, in milliseconds. `undefined`: until it ends. */
  readonly #stopWithin: number | undefined
  /** Aborted when it stops. `undefined`: it is not started. */
  #signal: AbortSignal | undefined
  /** Aborted, with the error, by a child whose failure is fatal. */
  #broken = new AbortController()

  constructor(clock?: Clock, restart: Backoff = backoff(), enabled = true, stopWithin?: number) {
    super(clock, enabled)
    this.#backoff = restart
    this.#stopWithin = stopWithin
  }

  override status(): Status {
    const children: Status[] = []
    const counted: Status[] = []
    for (const { member, status } of [...this.#children.values()].map(shown)) {
      if (status === undefined) continue
      children.push(status)
      if (this.counts(member)) counted.push(status)
    }
    return parentStatus(super.status(), children, counted)
  }

  /** Whether what this child achieves is a success of the whole. */
  protected counts(_child: Worker | Stoppable): boolean {
    return true
  }

  /** Adds a child that is started with this. */
  protected register(member: Worker | Stoppable, onFailure: OnFailure): void {
    if (!PHASES.includes(member?.phase) || typeof member.stop !== 'function') {
      const text = `a member must be a worker, or have stop() and a phase (${PHASES.join(', ')})`
      throw new WaybillError('INVALID_OPTION', `${this.name}: ${text}`)
    }
    if (this.#children.has(member))
      throw new WaybillError('DUPLICATE_NAME', `${this.name}: ${nameOf(member)} is a member already`)
    if (this.#signal?.aborted || this.#broken.signal.aborted)
      throw new WaybillError('STOPPED', `${this.name} is stopping, and takes no ${nameOf(member)}`)
    this.#children.set(member, new Child(member, onFailure))
  }

  /** Adds a child. Where this is started, the child is too when the promise resolves; one that cannot start is not kept. */
  protected async adopt(member: Worker | Stoppable, onFailure: OnFailure): Promise<void> {
    this.register(member, onFailure)
    if (this.#signal === undefined) return
    try {
      await this.#begin(this.#children.get(member)!)
    } catch (error) {
      this.#children.delete(member)
      throw error
    }
  }

  /** Stops a child and forgets it. */
  protected async dismiss(member: Worker | Stoppable): Promise<void> {
    const child = this.#children.get(member)
    this.forget(member)
    await child?.stop()
  }

  /** Forgets a child that is stopped already. */
  protected forget(member: Worker | Stoppable): void {
    this.#children.delete(member)
  }

  protected get members(): readonly (Worker | Stoppable)[] {
    return [...this.#children.keys()]
  }

  protected override async launch(signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    this.#signal = signal
    this.#broken = new AbortController()
    for (const phase of [...PHASES].reverse()) {
      if (signal.aborted) return
      // All have started, or could not, when this ends: one that is still starting could not be stopped.
      const results = await Promise.allSettled(this.#of(phase).map((child) => this.#begin(child)))
      for (const result of results) if (result.status === 'rejected') throw result.reason
    }
  }

  protected override async run(signal: AbortSignal): Promise<void> {
    this.condition.running()
    const over = AbortSignal.any([signal, this.#broken.signal])
    await aborted(over)
    if (!signal.aborted) throw this.#broken.signal.reason
  }

  /** Errors are gathered, and keep nobody from being stopped. */
  protected override async ended(): Promise<void> {
    const errors: unknown[] = []
    for (const phase of PHASES) {
      const results = await Promise.allSettled(this.#of(phase).map((child) => this.#stopped(child)))
      for (const result of results) if (result.status === 'rejected') errors.push(result.reason)
    }
    const count = this.#children.size
    for (const { member, onFailure } of this.#children.values())
      this.#children.set(member, new Child(member, onFailure))
    this.#signal = undefined
    this.#broken = new AbortController()
    if (errors.length === 0) return
    const text = `${errors.length} of ${count} could not be stopped cleanly: ${errorSummary(errors[0])}`
    throw new AggregateError(errors, text)
  }

  /** One whose stop hangs keeps nobody else from being stopped. */
  async #stopped(child: Child): Promise<void> {
    const ms = this.#stopWithin
    if (ms === undefined) return await child.stop()
    await withDeadline(child.stop(), ms, this.clock, () => {
      const text = `${nameOf(child.member)} has not stopped within ${ms} ms, and is not waited for any longer`
      throw new WaybillError('STOP_TIMEOUT', text)
    })
  }

  #of(phase: Phase): readonly Child[] {
    return [...this.#children.values()].filter(({ member }) => member.phase === phase)
  }

  async #begin(child: Child): Promise<void> {
    const { member } = child
    if (child.begun || !(member instanceof Worker)) return
    child.begun = true
    if (!member.started) await member.start()
    this.#watch(child, member)
  }

  #watch(child: Child, worker: Worker): void {
    child.begunAt = this.clock.monotonic()
    worker.finished.catch((error) => this.#failed(child, worker, asError(error)))
  }

  async #failed(child: Child, worker: Worker, error: Error): Promise<void> {
    // Its stop rejects with the error.
    if (child.over.signal.aborted || this.#signal?.aborted) return
    child.failures = this.clock.monotonic() - child.begunAt > STEADY ? 1 : child.failures + 1
    const retryIn = child.onFailure === 'fatal' ? undefined : this.#backoff(child.failures)
    const now = this.clock.now()
    const retryAt = retryIn === undefined ? undefined : new Date(now + retryIn)
    child.failed = { reason: errorSummary(error), since: child.failed?.since ?? new Date(now), retryAt }
    if (retryIn === undefined) {
      this.#broken.abort(error)
      return
    }
    const { failures } = child
    telemetry['worker.restarting'].publish({ worker: worker.name, parent: this.name, error, retryIn, failures })
    await this.clock.sleep(retryIn, child.over.signal)
    if (!child.over.signal.aborted) await this.#again(child, worker)
  }

  async #again(child: Child, worker: Worker): Promise<void> {
    try {
      await worker.start()
    } catch (error) {
      await this.#failed(child, worker, asError(error))
      return
    }
    child.failed = undefined
    this.#watch(child, worker)
  }
}

export interface SupervisorOptions {
  name: string
  phase?: Phase
  /** The pause before a child that failed is started again. Default 1 s doubling to 60 s. */
  backoff?: BackoffOptions
  /** How long the stop of one member is waited for. One that takes longer is an error of `stop`. Default: until it ends. */
  stopWithin?: Duration
  clock?: Clock
}

/** Several workers as one: started and stopped together, in order, and each started again when it fails. */
export class Supervisor extends Parent<readonly unknown[]> {
  readonly name: string
  override readonly phase: Phase

  constructor(options: SupervisorOptions) {
    checkOptions('supervisor', options, { name: true, phase: true, backoff: true, stopWithin: true, clock: true })
    const { name, stopWithin } = options
    const limit = stopWithin === undefined ? undefined : milliseconds(stopWithin, `supervisor ${name}: stopWithin`)
    super(options.clock, backoff(options.backoff, `supervisor ${name}: backoff`), true, limit)
    this.name = name
    this.phase = options.phase ?? 'consumers'
  }

  /**
   * Adds a member. While this is started, the member is too once the promise resolves. `restart`: one that ends with an
   * error is started again after a pause (default). `fatal`: all are stopped, and `finished` rejects with its error.
   */
  add(member: Worker | Stoppable, onFailure: OnFailure = 'restart'): Promise<void> {
    return this.adopt(member, onFailure)
  }

  /** Stops a member and forgets it. */
  remove(member: Worker | Stoppable): Promise<void> {
    return this.dismiss(member)
  }

  /** One round of each worker, one after the other. */
  async runOnce(): Promise<readonly unknown[]> {
    const rounds: unknown[] = []
    for (const member of this.members) if (member instanceof Worker) rounds.push(await member.runOnce())
    return rounds
  }
}

function shown(child: Child): { member: Worker | Stoppable; status: Status | undefined } {
  return { member: child.member, status: child.status() }
}

function isStarted(member: Worker | Stoppable): boolean {
  return member instanceof Worker && member.started
}

function nameOf(member: Worker | Stoppable): string {
  return member.name ?? 'a member without a name'
}
