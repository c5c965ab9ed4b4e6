import { afterEach } from 'vitest'
import { Message, type RawMessage } from '../../src/core/index.ts'
import {
  type Delivery,
  type Demand,
  Flow,
  type FlowOptions,
  type Session,
  type Settled,
  type Settlement,
  type Source,
  type SourceFeatures,
} from '../../src/flow/index.ts'
import { type FakeClock, recordTelemetry, seededRandom, type TelemetryRecorder } from '../../src/testing/index.ts'

export function message(id: string, key?: string, data = '{}'): RawMessage {
  const extensions = key === undefined ? {} : { partitionkey: key }
  return new Message({ id, source: '/test', type: 'thing.happened', extensions }, data)
}

export interface Row {
  readonly sequence: number
  readonly message: RawMessage
  readonly size: number
  attempts: number
  state: 'ready' | 'taken' | 'done' | 'dead'
  due: number
}

export interface Held extends Delivery {
  readonly row: Row
}

/** What a session was asked for, in order. */
export type Event =
  | { kind: 'open' | 'close' | 'lost' }
  | { kind: 'take'; at: number; demand: Demand; given: number }
  | { kind: 'probe'; id: string }
  | { kind: 'extend'; at: number; ids: string[] }

export interface StoreOptions {
  features?: SourceFeatures
  /** For `holdsKeys`: what a dead row does to its key. */
  deadKey?: 'block' | 'continue'
  afterCrash?: boolean
  extendEvery?: number
  live?: () => boolean
}

/**
 * A source that behaves as a table would: rows in order, given when they are due, held by key while one waits for its
 * retry. It throws when a flow breaks the rules: settling what it does not have, or settling twice.
 */
export class Store implements Source<Held> {
  readonly name = 'store'
  readonly features: SourceFeatures
  readonly rows: Row[] = []
  readonly events: Event[] = []
  /** Every settlement written, in order. */
  readonly settlements: { id: string; settlement: Settlement; attempts: number }[] = []
  readonly batches: number[] = []
  opened = 0
  controller = new AbortController()
  /** Called before the store does it; may throw or wait. */
  before: {
    open?: (signal: AbortSignal) => unknown
    take?: (signal: AbortSignal) => unknown
    settle?: (batch: readonly Settled<Held>[]) => unknown
    recordProbe?: (delivery: Held) => unknown
    close?: () => unknown
    extend?: () => unknown
  } = {}
  /** Called with what a take found, before it is answered. */
  afterTake: (() => unknown) | undefined
  wait: Session['wait']
  readonly #clock: FakeClock
  readonly #options: StoreOptions
  #unsettled = new Set<Held>()

  constructor(clock: FakeClock, options: StoreOptions = {}) {
    this.#clock = clock
    this.#options = options
    this.features = options.features ?? { redelivers: true, holdsKeys: true }
  }

  add(id: string, key?: string, size = 1): this {
    const row: Row = {
      sequence: this.rows.length,
      message: message(id, key),
      size,
      attempts: 0,
      state: 'ready',
      due: 0,
    }
    this.rows.push(row)
    return this
  }

  addMany(count: number, key?: (i: number) => string | undefined): this {
    for (let i = 0; i < count; i++) this.add(`m${i}`, key?.(i))
    return this
  }

  row(id: string): Row {
    return this.rows.find((row) => row.message.id === id)!
  }

  in(state: Row['state']): string[] {
    return this.rows.filter((row) => row.state === state).map((row) => row.message.id)
  }

  get unsettled(): number {
    return this.#unsettled.size
  }

  /** Kinds of settlement of one message, in order. */
  of(id: string): string[] {
    return this.settlements.filter((one) => one.id === id).map(({ settlement }) => settlement.kind)
  }

  lose(reason: unknown = new Error('lost')): void {
    this.events.push({ kind: 'lost' })
    for (const { row } of this.#unsettled) row.state = 'ready'
    this.#unsettled = new Set()
    this.controller.abort(reason)
  }

  async open(signal: AbortSignal): Promise<Session<Held>> {
    this.opened++
    await this.before.open?.(signal)
    this.events.push({ kind: 'open' })
    const controller = new AbortController()
    const mine = new Set<Held>()
    let closed = false
    this.controller = controller
    this.#unsettled = mine
    const { afterCrash, extendEvery, live } = this.#options
    const session: Session<Held> = {
      lost: controller.signal,
      take: async (demand, over) => {
        await this.before.take?.(over)
        if (controller.signal.aborted) return []
        const given = this.#take(demand, mine)
        this.events.push({ kind: 'take', at: this.#clock.monotonic(), demand, given: given.length })
        await this.afterTake?.()
        return given
      },
      settle: async (batch) => {
        if (closed) throw new Fault('settled after the session was closed')
        if (controller.signal.aborted) throw new Fault('settled after the session was lost')
        await this.before.settle?.(batch)
        if (closed) return batch.length
        return this.#settle(batch, mine, controller.signal)
      },
      close: async () => {
        closed = true
        await this.before.close?.()
        this.events.push({ kind: 'close' })
        for (const { row } of mine) row.state = 'ready'
        mine.clear()
      },
      ...(afterCrash === undefined ? {} : { afterCrash }),
      ...(live === undefined ? {} : { live }),
      ...(this.wait === undefined ? {} : { wait: this.wait }),
      recordProbe: async (delivery) => {
        await this.before.recordProbe?.(delivery)
        this.events.push({ kind: 'probe', id: delivery.message.id })
      },
    }
    if (extendEvery === undefined) return session
    const extend = async (deliveries: readonly Held[]) => {
      this.events.push({ kind: 'extend', at: this.#clock.monotonic(), ids: deliveries.map((one) => one.message.id) })
      await this.before.extend?.()
    }
    return { ...session, extendEvery, extend }
  }

  #take(demand: Demand, mine: Set<Held>): Held[] {
    const given: Held[] = []
    let bytes = 0
    const blocked = new Set<string>()
    for (const row of this.rows) {
      if (given.length >= demand.count) break
      const { key } = row.message
      const waits = row.due > this.#clock.monotonic()
      if (key !== undefined && this.features.leavesOut && demand.without?.has(key)) continue
      if (key !== undefined && this.features.holdsKeys) {
        if (blocked.has(key)) continue
        if (row.state === 'dead' && this.#options.deadKey !== 'continue') blocked.add(key)
        if (row.state === 'ready' && waits) blocked.add(key)
      }
      if (row.state !== 'ready' || waits) continue
      if (given.length > 0 && bytes + row.size > demand.bytes) break
      bytes += row.size
      row.state = 'taken'
      const held: Held = { message: row.message, key, attempts: row.attempts, size: row.size, row }
      mine.add(held)
      given.push(held)
    }
    return given
  }

  #settle(batch: readonly Settled<Held>[], mine: Set<Held>, lost: AbortSignal): number {
    if (lost.aborted) return batch.length
    this.batches.push(batch.length)
    for (const [delivery, settlement] of batch) {
      const { row } = delivery
      const { id } = row.message
      if (!mine.delete(delivery)) throw new Fault(`${id} was settled (${settlement.kind}) but is not unsettled`)
      this.settlements.push({ id, settlement, attempts: delivery.attempts })
      row.state = settlement.kind === 'done' ? 'done' : settlement.kind === 'dead' ? 'dead' : 'ready'
      if (settlement.kind !== 'retry') continue
      if (!this.features.redelivers) throw new Fault(`${id} was to be given again, which this source cannot`)
      row.due = this.#clock.monotonic() + settlement.after
      if (settlement.charged) row.attempts++
    }
    return 0
  }
}

/** The flow broke a rule of the port. */
export class Fault extends Error {}

const faults: unknown[] = []
const recorders: TelemetryRecorder[] = []

/** Telemetry of this test; a rule of the port that a flow broke fails the test whatever else it asserts. */
export function record(): TelemetryRecorder {
  const recorder = recordTelemetry()
  recorders.push(recorder)
  return recorder
}

const flows = new Set<Flow<Held>>()
let watching: TelemetryRecorder | undefined

export function flowOf(
  clock: FakeClock,
  from: Store,
  step: FlowOptions<Held>['step'],
  options: Partial<FlowOptions<Held>> = {},
): Flow<Held> {
  watching ??= recordTelemetry(['flow.settle_failed'])
  const retry = { backoff: { jitter: 0 }, ...options.retry }
  const usual = { outage: { jitter: 0 }, clock, random: seededRandom(1) }
  const flow = new Flow<Held>({ name: 'f', from, step, ...usual, ...options, retry })
  flows.add(flow)
  return flow
}

/** Stops a flow on a clock that somebody has to advance. */
export async function stop(clock: FakeClock, flow: { stop(): Promise<void> }, limit = 120_000): Promise<void> {
  let stopped = false
  const stopping = flow.stop().finally(() => {
    stopped = true
  })
  await clock.settle()
  if (!stopped) await clock.until(() => stopped, limit)
  await stopping
}

afterEach(() => {
  for (const recorder of recorders.splice(0)) recorder.stop()
  for (const { error } of watching?.of('flow.settle_failed') ?? []) if (error instanceof Fault) faults.push(error)
  watching?.stop()
  watching = undefined
  flows.clear()
  const [fault] = faults.splice(0)
  if (fault !== undefined) throw fault
})

/** A promise and the ways to settle it. */
export function deferred<T = void>(): {
  promise: Promise<T>
  resolve: (value: T) => void
  reject: (error: unknown) => void
} {
  let resolve: (value: T) => void = () => {}
  let reject: (error: unknown) => void = () => {}
  const promise = new Promise<T>((yes, no) => {
    resolve = yes
    reject = no
  })
  return { promise, resolve, reject }
}

/** A handler whose calls end when the test says so. */
export class Gate {
  readonly calls: { id: string; signal: AbortSignal; ended: boolean; end: (error?: unknown) => void }[] = []

  readonly each = (delivery: Held, signal: AbortSignal): Promise<void> => {
    const { promise, resolve, reject } = deferred()
    const call = {
      id: delivery.message.id,
      signal,
      ended: false,
      end: (error?: unknown) => {
        call.ended = true
        if (error === undefined) resolve()
        else reject(error)
      },
    }
    this.calls.push(call)
    return promise
  }

  /** Who went in, in order. */
  get order(): string[] {
    return this.calls.map(({ id }) => id)
  }

  /** Who is inside now. */
  get inside(): string[] {
    return this.calls.filter(({ ended }) => !ended).map(({ id }) => id)
  }

  /** Ends the newest call of this message. */
  end(id: string, error?: unknown): void {
    this.calls.findLast((call) => call.id === id)!.end(error)
  }

  endAll(): void {
    for (const call of this.calls) if (!call.ended) call.end()
  }
}
