import { isDeepStrictEqual } from 'node:util'
import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  isUuid,
  milliseconds,
  nameUuid,
  Reject,
  systemClock,
  uuidv7,
  WaybillError,
} from '../core/index.ts'
import { issueList } from '../core/schema.ts'
import type { Saga } from './definition.ts'
import { stored } from './json.ts'
import { decide, evolve } from './machine.ts'
import type { NewSaga, SagaDatabase, SagaFilter, SagaPage, SagaRecord, SagaStore } from './port.ts'
import type { SagaRunner } from './runner.ts'
import { begun, type Command, isOver, type SagaState, type SagaStatus } from './state.ts'
import { resultsOf } from './work.ts'

/** What a saga is started with beside its input. */
export interface StartOptions {
  /** The same id again starts nothing. A UUID, or any text of your own. Default: a new one. */
  id?: string
  tenant?: string
  /** W3C trace context. */
  traceparent?: string
}

/** How to wait for the end of a saga. */
export interface WaitOptions {
  /** How long to wait. The saga goes on without the caller. Default 30 s. */
  timeout?: Duration
  /** Stops waiting. It undoes nothing: see `cancel`. */
  signal?: AbortSignal
}

/** A saga that has not completed, as its caller is told. `code` says why: see the guide on errors. */
export class SagaError extends WaybillError {
  readonly sagaId: string
  readonly status: SagaStatus

  constructor(code: string, message: string, { id, status }: SagaState, options?: { cause?: unknown }) {
    super(code, message, options)
    this.name = 'SagaError'
    this.sagaId = id
    this.status = status
  }
}

interface ClientOptions<Tx> {
  /** Drives here what `run` starts. Without one, a runner somewhere else does. */
  runner?: SagaRunner<Tx>
  maxBytes?: number
  clock?: Clock
}

/** Between two looks at a saga that runs elsewhere, in milliseconds. */
const LOOK = { min: 20, max: 1000 }

/** Starts sagas of one definition, waits for them and finds them. */
export class SagaClient<Start, Input, Results, Tx = unknown> {
  readonly #saga: Saga<Start, Input, Results, Tx>
  readonly #store: SagaStore<Tx>
  readonly #runner: SagaRunner<Tx> | undefined
  readonly #most: number
  readonly #clock: Clock

  constructor(saga: Saga<Start, Input, Results, Tx>, db: SagaDatabase<Tx>, options: ClientOptions<Tx> = {}) {
    checkOptions('saga client', options, { runner: true, maxBytes: true, clock: true })
    this.#saga = saga
    this.#store = db.sagas
    this.#runner = options.runner
    this.#most = options.maxBytes ?? 1024 * 1024
    this.#clock = options.clock ?? systemClock
  }

  /** Starts a saga with the caller's transaction: no commit, no saga. Returns its id. A runner is told with the commit. */
  async start(tx: Tx, input: Start, options: StartOptions = {}): Promise<string> {
    const made = await this.#new(input, options)
    if (!(await this.#store.insert(tx, { ...made, runner: undefined, wakeIn: 0 }))) await this.#refuseOther(tx, made)
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
    const ended = this.#ended(made.id)
    try {
      const begins = await this.#runner?.begin(this.#saga, made)
      const inserted = begins ?? (await this.#store.insert(undefined, { ...made, runner: undefined, wakeIn: 0 }))
      if (!inserted) await this.#refuseOther(undefined, made)
      // Driven here it will tell; only one that waits long may be another's by then.
      return await this.#result(made.id, waiting, ended, begins === true)
    } finally {
      ended.forget()
    }
  }

  /** Waits for the end of a saga that was started before. Throws as `run` does; SAGA_UNKNOWN when there is none. */
  async result(id: string, options: WaitOptions = {}): Promise<Results> {
    const own = this.#idOf(id)
    const ended = this.#ended(own)
    try {
      return await this.#result(own, this.#waiting(options), ended, false)
    } finally {
      ended.forget()
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
    if (record === undefined) throw unknown(id)
    await change(this.#store, tx, this.#saga, record, { type: 'compensate', reason })
  }

  async #new(given: Start, options: StartOptions): Promise<Omit<NewSaga, 'runner' | 'wakeIn'>> {
    const { name, definition, steps } = this.#saga
    checkOptions(`saga ${name}`, options, { id: true, tenant: true, traceparent: true })
    const input = stored(await this.#valid(given), `the input of saga ${name}`, this.#most)
    const id = options.id === undefined ? uuidv7() : this.#idOf(options.id)
    const begins = begun(id)
    const state = decide(steps, begins, { type: 'begin' }).reduce(evolve, begins)
    const { tenant, traceparent } = options
    const aggregate = this.#saga.aggregateOf(input.value)
    return { id, type: name, definition, aggregate, tenant, traceparent, input: input.text ?? 'null', state }
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
      throw new WaybillError('INVALID_OPTION', `${describe(id)} is not the id of a saga`)
    }
    return isUuid(id) ? id.toLowerCase() : nameUuid(5, IDS, `${this.#saga.name}\0${id}`)
  }

  /** The same id is the same saga, or a mistake. */
  async #refuseOther(tx: Tx | undefined, { id, type, input }: Pick<NewSaga, 'id' | 'type' | 'input'>): Promise<void> {
    const there = await this.#store.load(tx, id)
    if (there === undefined) return
    if (there.type === type && isDeepStrictEqual(there.input, JSON.parse(input))) return
    throw new WaybillError('SAGA_EXISTS', `there is a saga ${id} already, of ${there.type}, with another input or type`)
  }

  #waiting(options: WaitOptions): { until: number; signal: AbortSignal | undefined } {
    checkOptions('result', options, { timeout: true, signal: true })
    return {
      until: this.#clock.monotonic() + milliseconds(options.timeout ?? '30s', 'timeout'),
      signal: options.signal,
    }
  }

  /** What a runner of this process says about it. */
  #ended(id: string) {
    const told = new AbortController()
    let ending: { state: SagaState; error: unknown } | undefined
    const forget = this.#runner?.listen(id, (state, error) => {
      ending = { state, error }
      told.abort()
    })
    return { signal: told.signal, ending: () => ending, forget: () => forget?.() }
  }

  async #result(
    id: string,
    { until, signal }: { until: number; signal: AbortSignal | undefined },
    ended: { signal: AbortSignal; ending(): { state: SagaState; error: unknown } | undefined },
    here: boolean,
  ): Promise<Results> {
    let pause = here ? LOOK.max : LOOK.min
    for (let first = true; ; first = false) {
      const ending = ended.ending()
      if (ending !== undefined) return outcome(ending.state, ending.error) as Results
      const left = until - this.#clock.monotonic()
      if (!here || !first) {
        const record = await this.#store.load(undefined, id)
        if (record === undefined) throw unknown(id)
        if (isOver(record) || record.held !== undefined) return outcome(record, undefined) as Results
        if (left <= 0) throw new SagaError('SAGA_TIMEOUT', `saga ${id} has not ended in time; it goes on`, record)
      }
      const over = AbortSignal.any(signal === undefined ? [ended.signal] : [ended.signal, signal])
      await this.#clock.sleep(Math.min(Math.max(0, left), pause), over)
      signal?.throwIfAborted()
      pause = Math.min(pause * 2, LOOK.max)
    }
  }
}

/** The namespace of ids that are no UUIDs. */
const IDS = '8d3b1c52-0f4e-5b7a-9c61-7a2e4f90d1b3'

function outcome(state: SagaState, error: unknown): unknown {
  const { id, status, held, steps } = state
  if (held !== undefined) throw new SagaError('SAGA_HELD', `saga ${id} waits for a person: ${held}`, state)
  if (status === 'completed') return resultsOf(state)
  const reason = state.error ?? 'no reason was written down'
  if (status === 'failed') throw new SagaError('SAGA_FAILED', `saga ${id} could not be undone: ${reason}`, state)
  const refused = steps.find((step) => step.status === 'failed' && step.error?.startsWith('Reject'))
  if (error instanceof Error) throw error
  if (refused !== undefined) throw new Reject(refused.error!.replace(/^Reject \[REJECTED\]: /, ''))
  throw new SagaError('SAGA_COMPENSATED', `saga ${id} was undone: ${reason}`, state)
}

export function unknown(id: string): WaybillError {
  return new WaybillError(
    'SAGA_UNKNOWN',
    `there is no saga ${describe(id)}, or it ended so long ago that it was removed`,
  )
}

/** What a person or the business decides, written in their transaction. Returns whether it changed anything. */
export async function change<Tx>(
  store: SagaStore<Tx>,
  tx: Tx | undefined,
  saga: { readonly steps: Saga['steps'] },
  record: SagaRecord,
  command: Command,
): Promise<SagaState | undefined> {
  const events = decide(saga.steps, record, command)
  if (events.length === 0) return undefined
  const state = events.reduce(evolve, record as SagaState)
  const { id, version } = record
  const over = state.held !== undefined || isOver(state)
  const ends = command.type === 'end'
  const written = await store.save(tx, {
    ...{ id, version, runner: undefined, state, lease: 0, progress: true, acknowledged: ends },
    steps: state.steps.filter((step) => !record.steps.includes(step as never)),
    claim: ends ? 'release' : 'leave',
    wakeIn: over ? undefined : 0,
  })
  if (!written) throw new WaybillError('CONFLICT', `saga ${id} was written by another at the same time; try again`)
  return state
}
