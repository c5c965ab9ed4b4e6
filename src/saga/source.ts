import { type Clock, telemetry, uuidv7, Wakeup, WaybillError } from '../core/index.ts'
import type { Demand, Session, Settled, Source } from '../flow/index.ts'
import type { AnySaga } from './definition.ts'
import type { Claimed, NewSaga, SagaListener, SagaStore } from './port.ts'
import { Work } from './work.ts'

export interface SagaSourceOptions {
  readonly name: string
  readonly store: SagaStore
  /** By the name of their definition. */
  readonly sagas: ReadonlyMap<string, AnySaga>
  /** Milliseconds. */
  readonly lease: number
  readonly clock: Clock
}

/** Sagas that are due are looked for from the very beginning this often, in milliseconds; in between behind the last. */
const LOOK_AT_ALL_EVERY = 1000
/** And those whose runner stopped without a word: they have been silent for as long as a lease. */
const LOOK_FOR_SILENT_EVERY = 5000
/** Those that nobody claims are counted this often, and told when they have been due for so long. */
const OVERDUE = 60_000
/** How many that were taken over may run at once, when all before did no harm. */
const MOST_APART = 32
/** How long others wait for those that were taken over. */
const PATIENCE = 30_000
/** How long to sleep at most where nobody tells of new sagas. */
const POLL = 5000
const SOON = 5
const LONG = 100
const IN_VAIN = 1000

/** Sagas that are due, claimed by competing runners. One session at a time. */
export class SagaSource implements Source<Work> {
  readonly name: string
  readonly features = { redelivers: true }
  readonly #options: SagaSourceOptions
  session: SagaSession | undefined

  constructor(options: SagaSourceOptions) {
    this.name = options.name
    this.#options = options
  }

  async open(): Promise<SagaSession> {
    this.session = new SagaSession(this.#options, await this.#options.store.listen?.())
    return this.session
  }
}

/**
 * What one runner has claimed. A claim is a token with an expiry; while the runner lives it is renewed. What was taken over
 * from a runner that stopped without a word may have killed it: quarantine. It runs with nothing else in progress, alone at
 * first, then in groups of 2, 4 …; one that was taken over before always alone.
 */
export class SagaSession implements Session<Work> {
  readonly extendEvery: number
  readonly #options: SagaSourceOptions
  readonly #listener: SagaListener | undefined
  readonly #lost = new AbortController()
  readonly #works = new Map<string, Work>()
  /** Started here by those who wait for them: they are claimed already. */
  readonly #started: Work[] = []
  readonly #changed: Wakeup
  readonly #definitions: readonly string[]
  /** Until when what was renewed last is ours, and what was claimed since. */
  #renewed = Number.POSITIVE_INFINITY
  #claimed = Number.POSITIVE_INFINITY
  #from: Date | undefined
  #allAt = 0
  #silentAt = 0
  #overdueAt: number
  #few = 1
  /** Since when those that were taken over run apart. */
  #apart: number | undefined
  #closed = false

  constructor(options: SagaSourceOptions, listener: SagaListener | undefined) {
    this.#options = options
    this.#listener = listener
    this.#changed = new Wakeup(options.clock)
    this.#definitions = [...options.sagas.keys()]
    this.extendEvery = options.lease / 3
    this.#overdueAt = options.clock.monotonic() + OVERDUE
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    if (this.#options.clock.monotonic() < Math.min(this.#renewed, this.#claimed)) return true
    if (!this.#lost.signal.aborted) {
      this.#lost.abort(new WaybillError('LEASE_EXPIRED', 'what was claimed could not be renewed in time'))
    }
    return false
  }

  /** Inserts a saga that this runner drives from its first write on. `undefined`: there is one of that id. */
  async begin(saga: AnySaga, made: Omit<NewSaga, 'runner' | 'wakeIn'>): Promise<Work | undefined> {
    const { store, lease, clock } = this.#options
    const runner = uuidv7()
    const asked = clock.monotonic()
    if (!(await store.insert(undefined, { ...made, runner, wakeIn: lease }))) return undefined
    const now = new Date(clock.now())
    const times = { wakeAt: undefined, createdAt: now, updatedAt: now, endedAt: undefined }
    const steps = made.state.steps.map((step) => ({
      ...step,
      startedAt: now,
      executedAt: undefined,
      compensatedAt: undefined,
    }))
    const input = JSON.parse(made.input)
    const currentStep = steps.at(-1)?.name
    const record = { ...made, ...made.state, input, steps, currentStep, version: 1, runner, takeovers: 0, ...times }
    const work = new Work(store, saga, { saga: record, takenOver: false }, lease)
    // Closed meanwhile: what nobody drives is given back at once.
    if (this.#closed || this.#lost.signal.aborted) {
      await work.giveBack(0)
      return work
    }
    this.#claimed = Math.min(this.#claimed, asked + lease * 0.9)
    this.#works.set(work.id, work)
    this.#started.push(work)
    this.#changed.wake()
    return work
  }

  async take({ count }: Demand): Promise<readonly Work[]> {
    const now = this.#options.clock.monotonic()
    if (this.#apart !== undefined) {
      const empty = this.#works.size === this.#started.length
      if (!empty && now < this.#apart + PATIENCE) return []
      this.#apart = undefined
    }
    if (now >= this.#overdueAt) await this.#tellOverdue(now)
    if (this.#started.length > 0) return this.#started.splice(0, count)
    const claimed = await this.#claim(count)
    const works = claimed.map((one) => this.#workOf(one))
    if (works.length > 0) this.#listener?.busy()
    return works
  }

  async #claim(count: number): Promise<readonly Claimed[]> {
    const { store, lease, clock } = this.#options
    const now = clock.monotonic()
    if (now >= this.#allAt) {
      this.#allAt = now + LOOK_AT_ALL_EVERY
      this.#from = undefined
    }
    // Not beside others: whoever kills this runner takes all that it has with it.
    const looks = this.#works.size === 0 && now >= this.#silentAt
    const takeovers = looks ? Math.min(count, this.#few) : 0
    const from = this.#from
    const options = { definitions: this.#definitions, count, takeovers, runner: uuidv7(), lease }
    const claimed = await store.claim({ ...options, from })
    this.#from = claimed.length >= count ? claimed.at(-1)!.dueAt : undefined
    if (claimed.length > 0) this.#claimed = Math.min(this.#claimed, now + lease * 0.9)
    if (claimed.some(({ takenOver }) => takenOver)) {
      // None of those before has done harm: the next may be more.
      this.#few = Math.min(this.#few * 2, MOST_APART)
      this.#apart = now
    } else if (looks) {
      this.#silentAt = now + LOOK_FOR_SILENT_EVERY
      this.#few = 1
    }
    return from !== undefined && claimed.length === 0 ? this.#claim(count) : claimed
  }

  #workOf(claimed: Claimed): Work {
    const { store, sagas, lease } = this.#options
    const { id, type, tenant, takeovers, steps, definition } = claimed.saga
    const work = new Work(store, sagas.get(definition)!, claimed, lease)
    this.#works.set(id, work)
    if (claimed.takenOver) {
      const done = steps.filter(({ executed }) => executed).map(({ name }) => name)
      telemetry['saga.taken_over'].publish({ type, id, tenant, takeovers, steps: done })
    }
    return work
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const { store, clock } = this.#options
    const over = new AbortController()
    const woken = this.#changed.pause(ms, AbortSignal.any([signal, over.signal])).then(() => over.abort())
    try {
      if (this.#apart !== undefined || this.#started.length > 0) {
        await (this.#started.length > 0 ? undefined : woken)
        return
      }
      const due = (await store.nextDue(this.#definitions)) ?? Number.POSITIVE_INFINITY
      if (over.signal.aborted) return
      // What has been due for a while and was not claimed is another's, or silent: no need to hurry.
      const pause = Math.min(ms, due < -LONG ? IN_VAIN : Math.max(SOON, due))
      if (this.#listener === undefined) await clock.sleep(Math.min(pause, POLL), over.signal)
      else await this.#listener.wait(pause, over.signal)
    } finally {
      over.abort()
    }
  }

  /** What was driven to its end, or as far as it goes now, has been written on the way. */
  async settle(batch: readonly Settled<Work>[]): Promise<number> {
    let stale = 0
    for (const [work, settlement] of batch) {
      if (settlement.kind !== 'done') await work.giveBack(settlement.kind === 'retry' ? settlement.after : 0)
      if (work.lost.signal.aborted) stale++
      if (this.#works.get(work.id) === work) this.#works.delete(work.id)
    }
    // One that waits may be due sooner than what was slept for, and what waits for those apart may go on.
    this.#changed.wake()
    return stale
  }

  async extend(works: readonly Work[]): Promise<void> {
    const { store, lease, clock } = this.#options
    const asked = clock.monotonic()
    this.#renewed = Math.min(this.#renewed, this.#claimed)
    this.#claimed = Number.POSITIVE_INFINITY
    const kept = [...new Set([...works, ...this.#started])].filter(({ released }) => !released)
    if (kept.length > 0) {
      const mine = new Set(
        await store.extend(
          kept.map(({ id, runner }) => ({ id, runner })),
          lease,
        ),
      )
      for (const work of kept) if (!mine.has(work.id) && !work.released) await work.reload()
    }
    this.#renewed = kept.length > 0 ? asked + lease * 0.9 : Number.POSITIVE_INFINITY
  }

  async close(): Promise<void> {
    this.#closed = true
    const left = this.#lost.signal.aborted ? [] : [...this.#works.values()]
    await Promise.all(left.map((work) => work.giveBack(0).catch(() => {})))
    this.#works.clear()
    await this.#listener?.close()
  }

  /** Those of a definition that nobody has registered, or that was changed under its version, wait for ever otherwise. */
  async #tellOverdue(now: number): Promise<void> {
    this.#overdueAt = now + OVERDUE
    for (const { definition, count } of await this.#options.store.overdue(OVERDUE)) {
      const registered = this.#options.sagas.has(definition)
      const version = definition.slice(0, definition.indexOf('#') + 1)
      const changed = !registered && this.#definitions.some((one) => one.startsWith(version))
      telemetry['saga.overdue'].publish({ definition, count, registered, changed })
    }
  }
}
