import { createHash } from 'node:crypto'
import {
  backoff,
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  type OptionNames,
  oneOf,
  type SchemaInput,
  type SchemaOutput,
  type StandardSchema,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import type { Json } from './json.ts'
import { AT_END, type StepPlan, type UnknownPolicy } from './state.ts'
import type {
  EndContext,
  Replies,
  RequestOptions,
  StepContext,
  StepDefinition,
  StepOptions,
  Timing,
  TransactionStepOptions,
} from './step.ts'

/** A saga: its version, the schema of its input, and the entity it belongs to. */
export interface SagaOptions<Input> {
  /** Instances finish on the version they began with. Raise it with every change of the steps, and keep the old one registered. */
  version: number
  /** The id of the business entity it is about, to find it by. */
  aggregate?: (input: Input) => string
}

/** The same where options are not left out. */
type Free<Name extends string, Results> = Name extends keyof Results | typeof AT_END
  ? [error: `step ${Name} exists already`]
  : []

/** A name that is free. A repeated one is a type error that says so. */
type Unused<Name extends string, Results, Options> = Name extends keyof Results | typeof AT_END
  ? [error: `step ${Name} exists already`]
  : [options?: Options]

type With<Results, Name extends string, Output> = {
  [Key in keyof Results | Name]: Key extends keyof Results ? Results[Key] : Output
}

interface Inner {
  readonly name: string
  readonly version: number
  readonly schema: StandardSchema | undefined
  readonly aggregate: ((input: unknown) => string) | undefined
  readonly steps: readonly StepDefinition[]
  readonly final: boolean
  readonly onEnd: ((c: EndContext<unknown, unknown>, tx: unknown) => unknown) | undefined
}

/**
 * A saga: steps that run one after the other, and how to undo each. It never changes; every method returns a longer one.
 * `Start` is what it is started with, `Input` that after its schema and JSON, `Results` what its steps return.
 */
export class Saga<Start = unknown, Input = Start, Results = unknown, Tx = unknown> {
  readonly name: string
  readonly version: number
  /** Tells definitions apart, changed ones of the same version too: `fulfilment@1#3f2a…`. */
  readonly definition: string
  readonly steps: readonly StepDefinition[]
  readonly #inner: Inner
  /** Only for types: what it is started with. */
  declare readonly started: (start: Start) => Tx

  /** Use `saga()`. */
  constructor(inner: Inner) {
    this.#inner = inner
    this.name = inner.name
    this.version = inner.version
    this.steps = inner.steps
    this.definition = `${inner.name}@${inner.version}#${hashOf(inner)}`
  }

  get schema(): StandardSchema | undefined {
    return this.#inner.schema
  }

  get ending(): Inner['onEnd'] {
    return this.#inner.onEnd
  }

  /** The same saga with each step changed, for tools that watch or disturb them; see `crashMatrix`. */
  wrapped(wrap: (step: StepDefinition) => StepDefinition): this {
    return new Saga({ ...this.#inner, steps: this.steps.map(wrap) }) as unknown as this
  }

  aggregateOf(input: unknown): string | undefined {
    const aggregate = this.#inner.aggregate?.(input)
    if (aggregate === undefined || typeof aggregate === 'string') return aggregate
    const text = `saga ${this.name}: aggregate() returned ${describe(aggregate)}; it must return text`
    throw wrong(text)
  }

  /** Calls somebody: a service, an API. What it returns is kept as JSON, and later steps find it in `c.results`. */
  step<const Name extends string, Output>(
    name: Name,
    run: (c: StepContext<Input, Results>) => Output,
    ...rest: Unused<Name, Results, StepOptions<Input, Results, NoInfer<Json<Awaited<Output>>>>>
  ): Saga<Start, Input, With<Results, Name, Json<Awaited<Output>>>, Tx> {
    const options = (rest[0] ?? {}) as StepOptions<Input, Results, unknown>
    const where = this.#where(name)
    checkOptions(where, options, { undo: true, check: true, unknown: true, ...TIMING })
    const { undo, check } = options
    const unknown = oneOf(`${where}: unknown`, options.unknown ?? (check ? 'check' : 'retry'), POLICIES)
    if (unknown === 'check' && check === undefined) {
      throw wrong(`${where}: unknown: 'check' needs the function check, which finds out whether it was done`)
    }
    return this.#with({
      ...this.#timed(where, options),
      ...blank(name, 'step'),
      run,
      undoing: undo,
      checking: check,
      unknown,
    })
  }

  /** A step in the saga's own database: its effect and its result are one commit, so it is never unknown. */
  transaction<const Name extends string, Output, Own extends Tx = Tx>(
    name: Name,
    run: (c: StepContext<Input, Results>, tx: Own) => Output,
    ...rest: Unused<Name, Results, TransactionStepOptions<Input, Results, NoInfer<Json<Awaited<Output>>>, NoInfer<Own>>>
  ): Saga<Start, Input, With<Results, Name, Json<Awaited<Output>>>, Own> {
    const options = (rest[0] ?? {}) as TransactionStepOptions<Input, Results, unknown, Own>
    const where = this.#where(name)
    checkOptions(where, options, { undo: true, ...TIMING })
    const undoing = options.undo
    return this.#with({ ...this.#timed(where, options), ...blank(name, 'transaction'), run, undoing })
  }

  /**
   * Asks somebody by a message, and waits for the message that replies: without a runner, a connection or a caller.
   *
   *     .request('ship', { send: (c) => ShipOrder({ … }), reply: Shipped, refused: ShipRefused, undo: (c) => CancelShipment({ … }) })
   */
  request<const Name extends string, Output, Refusal = never>(
    name: Name,
    options: RequestOptions<Input, Results, Output, Refusal>,
    ..._rest: Free<Name, Results>
  ): Saga<Start, Input, With<Results, Name, Json<Output>>, Tx> {
    const where = this.#where(name)
    checkOptions(where, options, REQUEST)
    const { send, undo, check } = options
    const unknown = oneOf(`${where}: unknown`, options.unknown ?? 'undo', POLICIES)
    const replies = checkedReplies(where, options as RequestOptions<unknown, unknown, unknown, unknown>)
    if (unknown === 'check' && check === undefined) {
      throw wrong(`${where}: unknown: 'check' needs the function check, which finds out whether it was done`)
    }
    if (replies.correlate !== undefined && this.#inner.aggregate === undefined) {
      throw wrong(`${where}: correlate finds a saga by its aggregate; give saga() the option aggregate`)
    }
    return this.#with({
      ...this.#timed(where, options),
      ...blank(name, 'request'),
      run: send ?? (() => undefined),
      undoing: undo,
      checking: check,
      // Behind the point of no return nothing is undone: it is held instead.
      unknown: this.#inner.final && options.unknown === undefined ? 'hold' : unknown,
      duration: milliseconds(options.within ?? '5m', `${where}: within`),
      sends: send !== undefined,
      confirmed: replies.undone !== undefined,
      replies,
    })
  }

  /** Waits, without a runner. */
  sleep<const Name extends string>(
    name: Name,
    duration: Duration,
    ..._rest: Unused<Name, Results, undefined>
  ): Saga<Start, Input, With<Results, Name, undefined>, Tx> {
    const where = this.#where(name)
    const ms = milliseconds(duration, where)
    return this.#with({ ...this.#timed(where, {}), ...blank(name, 'sleep'), run: () => undefined, duration: ms })
  }

  /** Behind it nothing is undone: what cannot go on is held for a person. */
  pointOfNoReturn(): this {
    if (this.#inner.final) throw wrong(`saga ${this.name}: it has a point of no return already; one is all it may have`)
    return new Saga({ ...this.#inner, final: true }) as unknown as this
  }

  /** Runs in the last write, so that a business row and its saga end together. */
  onEnd<Own extends Tx = Tx>(
    fn: (c: EndContext<Input, Results>, tx: Own) => unknown,
  ): Saga<Start, Input, Results, Own> {
    checkFunction(`saga ${this.name}: onEnd`, fn)
    return new Saga({ ...this.#inner, onEnd: fn as unknown as NonNullable<Inner['onEnd']> })
  }

  #where(name: unknown): string {
    const where = `saga ${this.name}: step ${describe(name)}`
    if (typeof name !== 'string' || name === '' || name.length > LONGEST_NAME) {
      throw new WaybillError('INVALID_NAME', `${where}: give a name of 1 to ${LONGEST_NAME} characters`)
    }
    if (name === AT_END)
      throw new WaybillError('INVALID_NAME', `${where}: this name is reserved for the end of a saga; choose another`)
    if (this.steps.some((step) => step.name === name)) {
      throw new WaybillError('INVALID_NAME', `${where}: there is a step of this name already; choose another`)
    }
    return where
  }

  #timed(where: string, options: Timing) {
    return {
      timeout: milliseconds(options.timeout ?? '5s', `${where}: timeout`),
      budget: milliseconds(options.budget ?? '1h', `${where}: budget`),
      undoBudget: milliseconds(options.undoBudget ?? '1h', `${where}: undoBudget`),
      backoff: backoff(options.backoff, `${where}: backoff`),
    }
  }

  #with(step: Omit<StepDefinition, 'final' | 'undo' | 'check'>): never {
    const where = `saga ${this.name}: step ${describe(step.name)}`
    checkFunction(`${where}: run`, step.run)
    if (step.undoing !== undefined) checkFunction(`${where}: undo`, step.undoing)
    if (step.checking !== undefined) checkFunction(`${where}: check`, step.checking)
    const { final } = this.#inner
    if (final && (step.undoing !== undefined || step.unknown === 'undo')) {
      throw wrong(
        `${where}: it stands behind the point of no return, where nothing is undone; leave undo out, or move it before pointOfNoReturn()`,
      )
    }
    const whole = { ...step, final, undo: step.undoing !== undefined, check: step.checking !== undefined }
    return new Saga({ ...this.#inner, steps: [...this.steps, whole] }) as never
  }
}

const TIMING: OptionNames<Timing> = { timeout: true, budget: true, undoBudget: true, backoff: true }
const POLICIES = ['check', 'retry', 'undo', 'hold'] as const
/** As in seed tables: a name is an index entry too. */
const LONGEST_NAME = 100

const REQUEST: OptionNames<RequestOptions<never, never, never>> = {
  send: true,
  reply: true,
  refused: true,
  within: true,
  undo: true,
  undone: true,
  check: true,
  unknown: true,
  correlate: true,
  ...TIMING,
}

function blank(name: string, kind: StepPlan['kind']) {
  const nothing = { undoing: undefined, checking: undefined, replies: undefined }
  return { name, kind, duration: 0, sends: false, confirmed: false, unknown: 'retry' as UnknownPolicy, ...nothing }
}

function checkedReplies(where: string, options: RequestOptions<unknown, unknown, unknown, unknown>): Replies {
  const { reply, refused, undone, correlate } = options
  const events = { reply, refused, undone }
  for (const [name, event] of Object.entries(events)) {
    if (typeof event?.decode === 'function' || (event === undefined && name !== 'reply')) continue
    const text = `${where}: ${name}: ${describe(event)} is not the definition of an event; give one: event('card.charged')`
    throw wrong(text)
  }
  const types = [reply, refused, undone].flatMap((event) => event?.type ?? [])
  if (new Set(types).size < types.length) {
    const text = `${where}: reply, refused and undone must be different events: their type says what happened`
    throw wrong(text)
  }
  if (undone !== undefined && options.undo === undefined) {
    throw wrong(`${where}: undone is the answer to undo; give undo too, or leave undone out`)
  }
  if (options.send === undefined && correlate === undefined) {
    const text = `${where}: without send it waits for a message from outside; give correlate, which finds the saga that the message is about`
    throw wrong(text)
  }
  for (const name of ['send', 'correlate'] as const) {
    if (options[name] !== undefined) checkFunction(`${where}: ${name}`, options[name])
  }
  return { reply, refused, undone, correlate: correlate as Replies['correlate'] }
}

function wrong(text: string): WaybillError {
  return new WaybillError('INVALID_OPTION', text)
}

function checkFunction(where: string, fn: unknown): void {
  if (typeof fn === 'function') return
  throw wrong(`${where}: ${describe(fn)} is not a function; give one`)
}

/** What must be the same for an instance to go on: names, kinds, order and policies. Code may be mended under way. */
function hashOf({ steps, onEnd }: Inner): string {
  const parts = steps.map(({ name, kind, undo, check, unknown, final, duration, sends, replies }) => [
    ...[name, kind, undo, check, unknown, final],
    // A deadline may be mended; what replies may not: the replies of old requests would count for nothing.
    ...(replies === undefined
      ? [duration]
      : [sends, replies.reply.type, replies.refused?.type, replies.undone?.type, replies.correlate !== undefined]),
  ])
  const text = JSON.stringify([parts, onEnd !== undefined])
  return createHash('sha256').update(text).digest('hex').slice(0, 12)
}

/**
 * Defines a saga. `version` and `input` (a schema of Zod, Valibot, ArkType, …) first, then its steps:
 *
 *     const fulfilment = saga('fulfilment', { version: 1, input: Order, aggregate: (order) => order.id })
 *       .step('reserve', (c) => stock.reserve(c.input, c.key), { undo: (c) => stock.release(c.key) })
 */
export function saga<Schema extends StandardSchema>(
  name: string,
  options: SagaOptions<Json<SchemaOutput<Schema>>> & { input: Schema },
): Saga<SchemaInput<Schema>, Json<SchemaOutput<Schema>>, Record<never, never>>
export function saga<Input = unknown>(
  name: string,
  options: SagaOptions<Json<Input>>,
): Saga<Input, Json<Input>, Record<never, never>>
export function saga(name: string, options: SagaOptions<never> & { input?: StandardSchema }): unknown {
  if (typeof name !== 'string' || !/^[\w.-]{1,50}$/.test(name)) {
    const text = `saga: ${describe(name)} is not a name; use 1 to 50 letters, digits, dots, dashes and underscores`
    throw new WaybillError('INVALID_NAME', text)
  }
  checkOptions(`saga ${name}`, options, { version: true, input: true, aggregate: true })
  const version = wholeNumber(`saga ${name}: version`, options?.version)
  const aggregate = options.aggregate as Inner['aggregate']
  return new Saga({ name, version, schema: options.input, aggregate, steps: [], final: false, onEnd: undefined })
}

/** Any saga, whatever its types. */
// biome-ignore lint/suspicious/noExplicitAny: what is not looked at.
export type AnySaga<Tx = any> = Saga<any, any, any, Tx>
