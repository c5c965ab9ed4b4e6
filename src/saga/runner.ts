import {
  type Clock,
  checkOptions,
  type Duration,
  errorSummary,
  type GaugeSource,
  milliseconds,
  type OptionNames,
  type Random,
  systemClock,
  telemetry,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { Flow, type Status } from '../flow/index.ts'
import { Breakers } from './breakers.ts'
import { StepCalls } from './calls.ts'
import { SagaClient } from './client.ts'
import { type AnySaga, Saga } from './definition.ts'
import { type DriveOptions, drive } from './drive.ts'
import { endingsOf, storeOf } from './endings.ts'
import { driveError, shown } from './failure.ts'
import type { NewSaga, SagaDatabase, SagaStore } from './port.ts'
import { sagaGauges } from './saga-gauges.ts'
import { SagaSource } from './source.ts'
import type { Work } from './work.ts'

/** What a runner runs, on what, and how. */
export interface SagaRunnerOptions<Tx> {
  /** The database: `postgres({ pool, sagas: true })`. */
  store: SagaDatabase<Tx>
  /** Every definition that this process can run. Register old versions too, while there are instances of them. */
  sagas: readonly AnySaga<Tx>[]
  name?: string
  /** How many sagas may be driven at once. Default 32. */
  concurrency?: number
  /** A runner that has not renewed its claims for so long is taken for dead. Default 10 min. */
  lease?: Duration
  /** The longest pause between two looks at the store; usually it is notified. Default 2 min. */
  maxPoll?: Duration
  /** How long steps may go on after a stop. Default 10 s. */
  grace?: Duration
  /** The most bytes of an input or of a result, as JSON. Default 1 MiB. */
  maxBytes?: number
  clock?: Clock
  random?: Random
}

const OPTIONS: OptionNames<SagaRunnerOptions<unknown>> = {
  store: true,
  sagas: true,
  name: true,
  concurrency: true,
  lease: true,
  maxPoll: true,
  grace: true,
  maxBytes: true,
  clock: true,
  random: true,
}

/** How a runner is. `unsettled` are the sagas it drives. */
export type SagaRunnerStatus = Status & {
  /** Steps that fail for all sagas, and are waited for. */
  readonly away: readonly string[]
}

/** Drives sagas: a flow whose source is what is due. Start as many as you like, in as many processes. */
export class SagaRunner<Tx = unknown> extends Flow<Work> {
  readonly #source: SagaSource
  readonly #store: SagaDatabase<Tx>
  readonly #options: DriveOptions
  readonly #breakers: Breakers
  readonly #driven: Set<Work>
  readonly #clock: Clock
  readonly #sagas: ReadonlyMap<string, AnySaga>
  #stopping = false
  override readonly gauges: GaugeSource | undefined

  constructor(options: SagaRunnerOptions<Tx>) {
    checkOptions('saga runner', options, OPTIONS)
    const { store, name = 'sagas', clock = systemClock, random } = options
    const sagas = registered(options.sagas)
    const lease = milliseconds(options.lease ?? '10m', 'saga runner: lease')
    const source = new SagaSource({ name, store: storeOf(store, 'saga runner'), sagas, lease, clock })
    const concurrency = wholeNumber('saga runner: concurrency', options.concurrency ?? 32)
    const maxPoll = milliseconds(options.maxPoll ?? '2m', 'saga runner: maxPoll')
    const driven = new Set<Work>()
    super({
      name,
      from: source,
      // Each call of a step has its own limit, and no saga is ever given up by the flow.
      step: { each: (work, signal) => this.#drive(work, signal) },
      timeout: false,
      concurrency,
      // What is claimed and not driven would be taken over, and suspected, when this process dies.
      buffer: { count: concurrency },
      poll: Math.min(1000, maxPoll),
      maxPoll,
      clock,
      ...(options.grace === undefined ? {} : { grace: options.grace }),
      ...(random === undefined ? {} : { random }),
    })
    this.#source = source
    this.#store = store
    this.#driven = driven
    this.#clock = clock
    this.#sagas = sagas
    const types = new Set([...sagas.values()].map((one) => one.name))
    this.gauges = sagaGauges(store.sagas as SagaStore, types, () => source.session)
    this.#breakers = new Breakers(clock, this.condition, random)
    const endings = endingsOf(store.sagas)
    this.#options = {
      db: store as SagaDatabase,
      clock,
      calls: new StepCalls(clock),
      breakers: this.#breakers,
      most: wholeNumber('saga runner: maxBytes', options.maxBytes ?? 1024 * 1024),
      stopping: () => this.#stopping,
      live: () => source.session?.live() === true,
      onOutcome: ({ state, refusal }) => endings.report(state, refusal),
    }
  }

  /** To start, run, find and cancel sagas of this definition. */
  client<Start, Input, Results>(saga: Saga<Start, Input, Results, Tx>): SagaClient<Start, Input, Results, Tx> {
    return new SagaClient(saga, this.#store, { runner: this, maxBytes: this.#options.most, clock: this.#clock })
  }

  override status(): SagaRunnerStatus {
    const away = this.#breakers.open
    return { ...super.status(), unsettled: this.#driven.size, away }
  }

  /** Steps that are going on may finish; what comes behind them is given back at once. */
  override async stop(): Promise<void> {
    this.#stopping = true
    try {
      await super.stop()
    } finally {
      this.#stopping = false
    }
  }

  /** Inserts a saga and drives it here. `false`: there is one of that id; `undefined`: this runner is not at work. */
  async begin(saga: AnySaga, made: Omit<NewSaga, 'runner'>): Promise<boolean | undefined> {
    const { session } = this.#source
    if (!this.started || this.#stopping || session === undefined || session.lost.aborted) return undefined
    return (await session.begin(saga, made)) !== undefined
  }

  /** The saga of this definition, if it is registered here. */
  known(definition: string): AnySaga | undefined {
    return this.#sagas.get(definition)
  }

  /** Whether this saga is driven here at the moment. */
  drives(id: string): boolean {
    return [...this.#driven].some((work) => work.id === id)
  }

  async #drive(work: Work, signal: AbortSignal): Promise<void> {
    this.#driven.add(work)
    try {
      await drive(work, signal, this.#options)
    } catch (error) {
      telemetry.warning.publish({
        // A label of a metric: the id stands in the message.
        where: `saga ${work.record.type}`,
        message: `${work.id} could not be driven: ${errorSummary(shown(work, error))}`,
      })
      throw await driveError(work, error)
    } finally {
      this.#driven.delete(work)
    }
  }
}

function registered(sagas: readonly AnySaga[]): ReadonlyMap<string, AnySaga> {
  if (!Array.isArray(sagas) || sagas.length === 0 || !sagas.every((one) => one instanceof Saga)) {
    throw new WaybillError('INVALID_OPTION', 'saga runner: give the sagas it runs: sagas: [fulfilment]')
  }
  const versions = new Set<string>()
  for (const { name, version, steps } of sagas) {
    if (steps.length === 0)
      throw new WaybillError(
        'INVALID_OPTION',
        `saga ${name}: it has no steps; add one with .step(), .transaction() or .request()`,
      )
    const known = `${name}@${version}`
    if (versions.has(known))
      throw new WaybillError(
        'INVALID_OPTION',
        `saga runner: sagas: ${known} is given twice; give each version of a saga once`,
      )
    versions.add(known)
  }
  return new Map(sagas.map((one) => [one.definition, one]))
}
