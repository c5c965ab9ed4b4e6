import { checkOptions, describe, type EventKey, type Message, oneOf, WaybillError, wholeNumber } from '../core/index.ts'
import { Handlers } from '../router/router.ts'
import type { Changes } from './changes.ts'
import type { ProjectionId } from './port.ts'

/**
 * What becomes of a `patch` or `add` whose row is missing: it is passed over, its event is parked until the row is there, or
 * the projection stops.
 */
export const MISSING = ['skip', 'park', 'fail'] as const
/** What becomes of a change whose row is missing. */
export type Missing = (typeof MISSING)[number]

/** Where a new projection begins. */
export const BEGINS = ['first', 'kept'] as const
/** Where a new projection begins, see ProjectionOptions. */
export type Begins = (typeof BEGINS)[number]

/** A view: which table, which row, and how to create it. */
export interface ProjectionOptions {
  /** A projection is named by name and version everywhere. Another version is another projection, in another table. */
  version: number
  /** The read table, with its schema if needed. */
  table: string
  /** The column that identifies a row: the primary key, or one with a unique index; uuid, text or an integer. */
  key: string
  /**
   * SQL that creates the table, and its indexes: one statement, or several in a list. `table` is its quoted name. Run once,
   * where the table is missing. Default: you create it.
   */
  create?: (table: string) => string | readonly string[]
  /** `patch` and `add` of a row that is missing. Default: `skip` from a log, `park` from a broker. */
  missing?: Missing
  /**
   * Where a new projection begins in its log. `first` (default): at the first event there ever was; where that is gone, since
   * the log was trimmed or the outbox was in use before it was declared one, it refuses to run. `kept`: at the first event
   * that is still there; what was before is yours to put into the table.
   */
  begins?: Begins
}

/** What `enrich` is given beside the event. */
export interface EnrichContext {
  /** Aborts when the answer comes too late to be used. */
  readonly signal: AbortSignal
}

/** What is looked up before an event is applied. */
export interface EnrichOptions<Data, Found> {
  /**
   * Asks another service, before the transaction, many at once. What it returns is the handler's second argument. One that
   * fails is tried again. When the event is parked, it is asked anew with each try.
   */
  enrich: (message: Message<Data>, context: EnrichContext) => Promise<Found> | Found
}

/** Pure: it looks at the event, and says what changes. It may be called again for the same event. */
export type ProjectionHandler<Data, Found> = (message: Message<Data>, found: Found) => Changes

/** One handler of a projection. */
export interface Reaction {
  readonly event: EventKey
  readonly enrich: ((message: Message, context: EnrichContext) => unknown) | undefined
  readonly handle: (message: Message, found: unknown) => Changes
}

/**
 * A read table and how events change it: `.on(event, handler)` for each, where the handler returns changes by key. Made
 * with `projection()`, run by a `Projector`.
 */
export class Projection implements ProjectionId {
  readonly name: string
  readonly version: number
  readonly table: string
  readonly key: string
  readonly create: ((table: string) => string | readonly string[]) | undefined
  readonly missing: Missing | undefined
  readonly begins: Begins
  readonly #handlers = new Handlers<Reaction>('projection')

  constructor(name: string, options: ProjectionOptions) {
    if (typeof name !== 'string' || !/^[\w.-]{1,100}$/.test(name)) {
      const allowed = 'give 1 to 100 letters, digits and . _ -'
      throw new WaybillError('INVALID_OPTION', `projection: ${describe(name)} is not a name; ${allowed}`)
    }
    const where = `projection ${name}`
    checkOptions(where, options, { version: true, table: true, key: true, create: true, missing: true, begins: true })
    this.name = name
    this.version = wholeNumber(`${where}: version`, options.version, { max: 2 ** 31 - 1 })
    this.table = options.table
    this.key = options.key
    this.create = options.create
    this.missing = options.missing === undefined ? undefined : oneOf(`${where}: missing`, options.missing, MISSING)
    this.begins = oneOf(`${where}: begins`, options.begins ?? 'first', BEGINS)
    if (typeof this.key !== 'string' || this.key === '') {
      throw new WaybillError('INVALID_OPTION', `${where}: key is ${describe(this.key)}; give the name of a column`)
    }
  }

  /** What an event changes: `on(event, handler)`, or `on(event, { enrich }, handler)`. */
  on<Data>(event: EventKey<Data>, handler: (message: Message<Data>) => Changes): this
  on<Data, Found>(
    event: EventKey<Data>,
    options: EnrichOptions<Data, Found>,
    handler: ProjectionHandler<Data, Found>,
  ): this
  on(event: EventKey, second: unknown, third?: unknown): this {
    const where = `projection ${this.name}`
    if (typeof event?.decode !== 'function') {
      const text = `${where}: ${describe(event)} is not the definition of an event; give one: event('order.created')`
      throw new WaybillError('INVALID_OPTION', text)
    }
    const [options, handler] = typeof second === 'function' ? [undefined, second] : [second, third]
    checkOptions<{ enrich?: unknown }>(`${where}: ${event.type}`, options as object | undefined, { enrich: true })
    const enrich = (options as { enrich?: unknown } | undefined)?.enrich
    if (typeof handler !== 'function' || (enrich !== undefined && typeof enrich !== 'function')) {
      throw new WaybillError('INVALID_OPTION', `${where}: the handler for "${event.type}" is not a function`)
    }
    this.#handlers.add({ event, enrich: enrich as Reaction['enrich'], handle: handler as Reaction['handle'] })
    return this
  }

  /** The types it has handlers for. */
  get types(): string[] {
    return this.#handlers.types
  }

  /** The handler of this event, if there is one. */
  reactionTo(message: Message): Reaction | undefined {
    return this.#handlers.find(message)
  }

  toString(): string {
    return idText(this)
  }
}

/** `order_list_view/1`: as leadership scopes, telemetry and errors name a projection. */
export function idText({ name, version }: ProjectionId): string {
  return `${name}/${version}`
}

/** `store` is a database with tables for projections. `who` is for the error. */
export function checkStore(who: string, store: unknown): void {
  if (typeof (store as { leadership?: unknown } | undefined)?.leadership === 'function') return
  const text = `${who}: store is ${describe(store)}; give postgres({ pool, projections: true })`
  throw new WaybillError('INVALID_OPTION', text)
}

/** A projection, or its name and version. */
export function checkId(who: string, id: ProjectionId): ProjectionId {
  if (typeof id?.name === 'string' && Number.isInteger(id.version)) return id
  const text = `${who}: ${describe(id)} is not a projection; give it, or { name, version }`
  throw new WaybillError('INVALID_OPTION', text)
}

/**
 * A read table that follows events:
 *
 * ```ts
 * projection('order_list_view', { version: 1, table: 'order_list_view', key: 'order_id', create })
 *   .on(OrderCreated, ({ data }) => put(data.orderId, { status: data.status, amount: data.amount }))
 *   .on(OrderStatusChanged, ({ data }) => patch(data.orderId, { status: data.newStatus }))
 * ```
 */
export function projection(name: string, options: ProjectionOptions): Projection {
  return new Projection(name, options)
}
