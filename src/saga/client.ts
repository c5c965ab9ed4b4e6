import { isDeepStrictEqual } from 'node:util'
import {
  activeTraceparent,
  type Clock,
  checkOptions,
  type Duration,
  describe,
  isUuid,
  type Message,
  milliseconds,
  nameUuid,
  systemClock,
  telemetry,
  uuidv7,
  WaybillError,
  withDeadline,
} from '../core/index.ts'
import { issueList } from '../core/schema.ts'
import type { AnySaga, Saga } from './definition.ts'
import { endingsOf, LOOK, SagaWaiter, storeOf, unknown } from './endings.ts'
import { stored } from './json.ts'
import { decide, next } from './machine.ts'
import { notInTime, outcome, SagaError } from './outcome.ts'
import { beforeUndoing, enqueue, outgoing } from './outgoing.ts'
import type { NewSaga, SagaDatabase, SagaFilter, SagaPage, SagaRecord, SagaStore } from './port.ts'
import type { SagaRunner } from './runner.ts'
import { begun, type Command, isOver, type SagaState } from './state.ts'

/** What a saga is started with beside its input. */
export interface StartOptions {
  /** The same id again starts nothing. A UUID, or any text of your own. Default: a new one. */
  id?: string
  tenant?: string
  /** W3C trace context. Default: the active trace, once `useOpenTelemetry` was called. */
  traceparent?: string
}

/** How to wait for the end of a saga. */
export interface WaitOptions {
  /** How long to wait. The saga goes on without the caller. Default 30 s. */
  timeout?: Duration
  /** Stops waiting. It undoes nothing: see `cancel`. */
  signal?: AbortSignal
}

interface ClientOptions<Tx> {
  /** Drives here what `run` starts. Without one, a runner somewhere else does. */
  runner?: SagaRunner<Tx>
  maxBytes?: number
  clock?: Clock
}

/** How long a caller waits, on the monotonic clock. */
interface WaitLimits {
  readonly until: number
  readonly signal: AbortSignal | undefined
}

/** A saga before it is written, and the message it begins with. */
interface Beginning extends Omit<NewSaga, 'runner'> {
  readonly messages: readonly Message[]
}

/** Starts sagas of one definition, waits for them and finds them. */
export class SagaClient<Start, Input, Results, Tx = unknown> {
  readonly #saga: Saga<Start, Input, Results, Tx>
  readonly #db: SagaDatabase<Tx>
  readonly #store: SagaStore<Tx>
  readonly #runner: SagaRunner<Tx> | undefined
  readonly #most: number
  readonly #clock: Clock

  constructor(saga: Saga<Start, Input, Results, Tx>, db: SagaDatabase<Tx>, options: ClientOptions<Tx> = {}) {
    checkOptions('saga client', options, { runner: true, maxBytes: true, clock: true })
    this.#saga = saga
    this.#db = db
    this.#store = storeOf(db, 'saga client')
    this.#runner = options.runner
    this.#most = options.maxBytes ?? 1024 * 1024
    this.#clock = options.clock ?? systemClock
  }

  /** Starts a saga with the caller's transaction: no commit, no saga. Returns its id. The commit notifies a runner. */
  async start(tx: Tx, input: Start, options: StartOptions = {}): Promise<string> {
    const made = await this.#new(input, options)
    if (!(await this.#insert(tx, made))) await this.#refuseOther(tx, made)
    else tellStarted(made)
    return made.id
  }

  /**
   * Starts a saga, drives it here and waits for its end: returns what its steps returned. Throws what a step was refused
   * with, when it was undone for that; a SagaError when it was undone for another reason, is held, has failed, or takes
   * longer than `timeout`.
   */
  async run(input: Start, options: StartOptions & WaitOptions = {}): Promise<Results> {
    const { timeout, signal, ...about } = options
    const waiting = this.#waiting({
      ...(timeout === undefined ? {} : { timeout }),
      ...(signal === undefined ? {} : { signal }),
    })
    const made = await this.#new(input, about)
    const waiter = this.#listen(made.id)
    try {
      const here = await this.#inTime(this.#begin(made), made.id, waiting)
      return await this.#result(waiter, waiting, here)
    } finally {
      endingsOf(this.#store).forget(waiter)
    }
  }

  /** Waits for the end of a saga that was started before. Throws as `run` does; SAGA_UNKNOWN when there is none. */
  async result(id: string, options: WaitOptions = {}): Promise<Results> {
    const waiting = this.#waiting(options)
    const waiter = this.#listen(this.#idOf(id))
    try {
      return await this.#result(waiter, waiting, false)
    } catch (error) {
      // By the id that was asked for: the row has one that was made of it.
      throw error instanceof WaybillError && error.code === 'SAGA_UNKNOWN' ? unknown(id) : error
    } finally {
      endingsOf(this.#store).forget(waiter)
    }
  }

  /** Sagas of this definition's name, newest first. */
  find(filter: Omit<SagaFilter, 'type'> = {}, page: SagaPage = {}): Promise<readonly SagaRecord[]> {
    checkOptions('find', filter, { aggregate: true, status: true, attention: true })
    return this.#store.list({ ...filter, type: this.#saga.name }, page)
  }

  /** The business gives it up: what was done is undone. Refused behind the point of no return. */
  async cancel(tx: Tx, id: string, reason = 'cancelled'): Promise<void> {
    const record = await this.#store.load(tx, this.#idOf(id), true)
    if (record?.type !== this.#saga.name) throw unknown(id)
    const { definition } = record
    // What may be done, and how, is said by the version it began with.
    const saga = definition === this.#saga.definition ? this.#saga : this.#runner?.known(definition)
    if (saga === undefined) throw unknownDefinition(id, definition)
    await change(this.#db, tx, saga, record, { type: 'compensate', reason })
  }

  /** Writes it, and drives it here if it can: returns whether it does. */
  async #begin(made: Beginning): Promise<boolean> {
    const { messages: _none, ...begun } = made
    // Nobody drives what begins with waiting.
    const here = made.wakeIn > 0 ? undefined : await this.#runner?.begin(this.#saga, begun)
    if (here ?? (await this.#insert(undefined, made))) tellStarted(made)
    else await this.#refuseOther(undefined, made)
    return here === true
  }

  /**
   * A store that does not answer keeps a caller no longer than it wants to wait, or a second. What it was asked for goes on.
   */
  #inTime<T>(work: Promise<T>, id: string, { until, signal }: WaitLimits): Promise<T> {
    const late = (): never => {
      signal?.throwIfAborted()
      const text = `saga ${id}: its store does not answer, so nobody knows whether it has begun; run it again with this id`
      throw new SagaError('SAGA_TIMEOUT', text, begun(id, this.#saga.name))
    }
    return withDeadline(work, Math.max(LOOK.max, until - this.#clock.monotonic()), this.#clock, late, signal)
  }

  /** With its first message, if it begins with one. */
  async #insert(tx: Tx | undefined, begins: Beginning): Promise<boolean> {
    const { messages, ...made } = begins
    if (tx === undefined && messages.length > 0) return this.#db.withTransaction((own) => this.#insert(own, begins))
    if (!(await this.#store.insert(tx, { ...made, runner: undefined }))) return false
    if (tx !== undefined) await enqueue(this.#db, tx, messages)
    return true
  }

  async #new(given: Start, options: StartOptions): Promise<Beginning> {
    const { name, definition, steps } = this.#saga
    checkOptions(`saga ${name}`, options, { id: true, tenant: true, traceparent: true })
    const input = stored(await this.#valid(given), `the input of saga ${name}`, this.#most)
    const id = options.id === undefined ? uuidv7() : this.#idOf(options.id)
    const begins = begun(id, name)
    const { tenant, traceparent = activeTraceparent() } = options
    const aggregate = this.#saga.aggregateOf(input.value)
    const about = { id, type: name, tenant, traceparent }
    const first = decide(steps, begins, { type: 'begin' })
    const { state, messages } = await outgoing(this.#saga, { ...about, input: input.value }, begins, first, (error) => {
      throw error
    })
    const wakeIn = first.find((event) => event.type === 'Waiting')?.after ?? 0
    return { ...about, definition, aggregate, input: input.text ?? 'null', state, messages, wakeIn }
  }

  async #valid(given: Start): Promise<unknown> {
    const { schema, name } = this.#saga
    if (schema === undefined) return given
    const result = await schema['~standard'].validate(given)
    if (result.issues === undefined) return result.value
    throw new WaybillError('INVALID_PAYLOAD', `the input of saga ${name}: ${issueList(result.issues, given)}`)
  }

  #idOf(id: string): string {
    if (typeof id !== 'string' || id === '') {
      throw new WaybillError(
        'INVALID_OPTION',
        `${describe(id)} is not the id of a saga; give the text that start() returned, or the id you gave it`,
      )
    }
    return isUuid(id) ? id.toLowerCase() : nameUuid(5, IDS, `${this.#saga.name}\0${id}`)
  }

  /** The same id is the same saga, or a mistake. */
  async #refuseOther(tx: Tx | undefined, { id, type, input }: Pick<NewSaga, 'id' | 'type' | 'input'>): Promise<void> {
    const there = await this.#store.load(tx, id)
    if (there === undefined) throw new WaybillError('CONFLICT', `saga ${id} was removed at the same time; try again`)
    if (there.type === type && isDeepStrictEqual(there.input, JSON.parse(input))) return
    throw new WaybillError(
      'SAGA_EXISTS',
      `saga ${id} was started before, as ${there.type}, with another input or type; give each business operation an id of its own`,
    )
  }

  #waiting(options: WaitOptions): WaitLimits {
    checkOptions('result', options, { timeout: true, signal: true })
    return {
      until: this.#clock.monotonic() + milliseconds(options.timeout ?? '30s', 'timeout'),
      signal: options.signal,
    }
  }

  /** Told from now on what is written about it in this process. */
  #listen(id: string): SagaWaiter {
    const waiter = new SagaWaiter(id, this.#saga.name, this.#clock.monotonic())
    endingsOf(this.#store).listen(waiter)
    return waiter
  }

  async #result(waiter: SagaWaiter, { until, signal }: WaitLimits, here: boolean): Promise<Results> {
    const { id } = waiter
    const left = () => Math.max(0, until - this.#clock.monotonic())
    const wait = (ms: number) => withDeadline(waiter.settled, ms, this.#clock, () => {}, signal)
    // Driven here it is notified; only one that waits long may be another's by then.
    if (here) await wait(Math.min(left(), LOOK.max))
    if (!waiter.isSettled) {
      endingsOf(this.#store).look(waiter, this.#clock)
      await wait(left())
    }
    if (waiter.failure !== undefined) throw waiter.failure.error
    if (waiter.ending !== undefined) return outcome(waiter.ending.state, waiter.ending.error) as Results
    signal?.throwIfAborted()
    const record = await this.#atLast(id)
    if (record?.type !== this.#saga.name) throw unknown(id)
    if (isOver(record) || record.held !== undefined) return outcome(record, undefined) as Results
    const driven = this.#runner?.drives(id) === true
    throw notInTime(record, { definition: this.#saga.definition, here: driven, now: this.#clock.now() })
  }

  /** What is stored when the time is up. A store that does not answer keeps nobody any longer. */
  #atLast(id: string): Promise<SagaRecord | undefined> {
    const unanswered = (cause?: unknown): never => {
      const text = `saga ${id}: the time is up, and its store does not answer, so its state is unknown; it goes on`
      throw new SagaError('SAGA_TIMEOUT', text, begun(id, this.#saga.name), { cause })
    }
    return withDeadline(this.#store.load(undefined, id).catch(unanswered), LOOK.max, this.#clock, unanswered)
  }
}

/** The namespace of ids that are no UUIDs. */
const IDS = '8d3b1c52-0f4e-5b7a-9c61-7a2e4f90d1b3'

export function unknownDefinition(id: string, definition: string): WaybillError {
  return new WaybillError(
    'SAGA_REFUSED',
    `saga ${id}: its definition ${definition} is not registered here; give it to the option sagas`,
  )
}

/**
 * What a person, the business or a reply decides, written in their transaction with the messages that follow from it.
 * Returns the state, if it changed anything. What the business does at the end and the undo of a request are left to a
 * runner: it tries the one again, and looks whether something blocks the other.
 */
export async function change<Tx>(
  db: SagaDatabase<Tx>,
  tx: Tx,
  saga: Pick<AnySaga, 'steps' | 'ending'>,
  record: SagaRecord,
  command: Command,
): Promise<SagaState | undefined> {
  const ends = command.type === 'end'
  const decided = beforeUndoing(saga, decide(saga.steps, record, command))
  if (decided.length === 0) return undefined
  const left = ends || saga.ending === undefined ? decided : decided.filter(({ type }) => type !== 'Ended')
  const { events, state, messages } = await outgoing(saga, record, record, left)
  const { id, version } = record
  const over = state.held !== undefined || isOver(state)
  const waiting = events.findLast((event) => event.type === 'Waiting')
  const asBefore = events.every(({ type }) => type === 'Early') || next(saga.steps, state).do === 'expire'
  const written = await db.sagas.save(tx, {
    ...{ id, version, runner: undefined, state, lease: 0, progress: true, acknowledged: ends },
    steps: state.steps.filter((step) => !record.steps.includes(step as never)),
    // What waits from now on is nobody's: whoever has it would take it for due.
    claim: ends || waiting !== undefined ? 'release' : asBefore ? 'stay' : 'leave',
    wakeIn: over ? undefined : (waiting?.after ?? 0),
  })
  if (!written) throw new WaybillError('CONFLICT', `saga ${id} was written by another at the same time; try again`)
  await enqueue(db, tx, messages)
  return state
}

function tellStarted({ type, id, tenant, traceparent }: Omit<NewSaga, 'runner' | 'wakeIn'>): void {
  telemetry['saga.started'].publish({ type, id, tenant, traceparent })
}
