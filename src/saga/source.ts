import { type Clock, telemetry, uuidv7, Wakeup, WaybillError } from '../core/index.ts'
import { type Demand, Lease, type Session, type Settled, type Source } from '../flow/index.ts'
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

/** Those whose runner stopped without a word are looked for this often: they have been silent for as long as a lease. */
const LOOK_FOR_SILENT_EVERY = 5000
/** Those that nobody claims are counted this often, and reported when they have been due for so long. */
const OVERDUE = 60_000
/** How many that were taken over may run at once, when all before did no harm. */
const MOST_QUARANTINED = 32
/** How long others wait for those that were taken over. */
const PATIENCE = 30_000
/** How long to sleep at most where there are no notifications of new sagas. */
const POLL = 5000
const SOON = 5
const LONG = 100
const IN_VAIN = 1000
/** Why a wait is over: without a reason an error is made for it. */
const OVER = 'over'

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
  readonly #lease: Lease
  #silentAt = 0
  #overdueAt: number
  #quarantineSize = 1
  /** Since when those that were taken over go out alone: see PATIENCE. */
  #quarantined: number | undefined
  /** Since when nothing new is taken, so that what others left behind can be taken over. */
  #room: number | undefined
  /** Before then the store has nothing, unless it is notified: sagas that are run here cost no look. */
  #lookAt = 0
  #closed = false

  constructor(options: SagaSourceOptions, listener: SagaListener | undefined) {
    this.#options = options
    this.#listener = listener
    this.#changed = new Wakeup(options.clock)
    this.#definitions = [...options.sagas.keys()]
    this.extendEvery = options.lease / 3
    this.#lease = new Lease(options.clock, options.lease)
    this.#overdueAt = options.clock.monotonic() + OVERDUE
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    if (this.#lease.live) return true
    if (!this.#lost.signal.aborted) {
      this.#lost.abort(new WaybillError('LEASE_EXPIRED', 'the leases of claimed sagas could not be renewed in time'))
    }
    return false
  }

  /** Whether this runner reports all sagas. Where runners cannot know of each other, each does. */
  async tellsOfAll(): Promise<boolean> {
    return (await this.#listener?.tellsOfAll?.()) ?? true
  }

  /** Inserts a saga that this runner drives from its first write on. `undefined`: there is one of that id. */
  async begin(saga: AnySaga, made: Omit<NewSaga, 'runner'>): Promise<Work | undefined> {
    const { store, lease, clock } = this.#options
    const runner = uuidv7()
    const asked = clock.monotonic()
    if (!(await this.#insert({ ...made, runner, wakeIn: lease }))) return undefined
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
    this.#lease.claimed(asked)
    this.#works.set(work.id, work)
    this.#started.push(work)
    this.#changed.wake()
    return work
  }

  /** Where the answer is lost the store is asked: one that is there and that nobody drives would wait for a takeover. */
  async #insert(made: NewSaga): Promise<boolean> {
    const { store } = this.#options
    try {
      return await store.insert(undefined, made)
    } catch (error) {
      const there = await store.load(undefined, made.id).catch(() => undefined)
      if (there?.runner !== made.runner) throw error
      return true
    }
  }

  async take({ count }: Demand): Promise<readonly Work[]> {
    const now = this.#options.clock.monotonic()
    if (this.#quarantined !== undefined) {
      if (!this.#isEmpty && now < this.#quarantined + PATIENCE) return []
      this.#quarantined = undefined
      this.#lookAt = 0
    }
    if (now >= this.#overdueAt) await this.#tellOverdue(now)
    if (!this.#isEmpty && now >= this.#silentAt && (await this.#makesRoom(now))) return []
    if (this.#started.length > 0) return this.#started.splice(0, count)
    if (now < this.#lookAt && this.#room === undefined) return []
    const claimed = await this.#claim(count)
    const works = claimed.map((one) => this.#workOf(one))
    if (works.length > 0) this.#listener?.busy()
    return works
  }

  async #claim(count: number): Promise<readonly Claimed[]> {
    const { store, lease, clock } = this.#options
    const now = clock.monotonic()
    // Not beside others: whoever kills this runner takes all that it has with it.
    const looks = now >= this.#silentAt && (this.#works.size === 0 || this.#room !== undefined)
    const takeovers = looks ? Math.min(count, this.#quarantineSize) : 0
    const claimed = await store.claim({ definitions: this.#definitions, count, takeovers, runner: uuidv7(), lease })
    if (claimed.length > 0) this.#lease.claimed(now)
    if (claimed.some(({ takenOver }) => takenOver)) {
      // None of those before has done harm: the next may be more.
      this.#quarantineSize = Math.min(this.#quarantineSize * 2, MOST_QUARANTINED)
      this.#quarantined = now
    } else if (looks) {
      this.#silentAt = now + LOOK_FOR_SILENT_EVERY
      this.#quarantineSize = 1
    }
    if (looks) this.#room = undefined
    return claimed
  }

  /** Nothing is in progress. */
  get #isEmpty(): boolean {
    return this.#works.size === this.#started.length
  }

  /**
   * A runner that always has something in progress would never take over what others left behind. When there is such a
   * saga it takes nothing new until what it has is done, or for as long as its patience lasts. Returns whether to wait.
   */
  async #makesRoom(now: number): Promise<boolean> {
    if (this.#room === undefined) {
      const due = await this.#options.store.nextDue(this.#definitions, true)
      if (due === undefined || due > 0) {
        this.#silentAt = now + LOOK_FOR_SILENT_EVERY
        return false
      }
      this.#room = now
    }
    return now < this.#room + PATIENCE
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
    const woken = this.#changed.pause(ms, signal, over.signal).then(() => over.abort(OVER))
    try {
      if (this.#quarantined !== undefined || this.#room !== undefined) return await woken
      if (this.#started.length > 0) return
      if (clock.monotonic() >= this.#lookAt) {
        // First, since what is given back while the store is asked may be due sooner.
        this.#lookAt = Number.POSITIVE_INFINITY
        const due = (await store.nextDue(this.#definitions)) ?? Number.POSITIVE_INFINITY
        // What has been due for a while and was not claimed is another's, or silent: no need to hurry.
        const pause = Math.min(ms, due < -LONG ? IN_VAIN : Math.max(SOON, due))
        this.#look(this.#listener === undefined ? Math.min(pause, POLL) : pause)
      }
      if (over.signal.aborted) return
      const pause = Math.max(0, this.#lookAt - clock.monotonic())
      const notified = await (this.#listener?.wait(pause, over.signal) ?? clock.sleep(pause, over.signal))
      // Else something was settled here, and the store has nothing new.
      if (notified || !over.signal.aborted) this.#lookAt = 0
    } catch (error) {
      this.#lookAt = 0
      throw error
    } finally {
      over.abort(OVER)
    }
  }

  /** There may be something in the store in `ms` milliseconds. Returns whether that is sooner than was known. */
  #look(ms: number): boolean {
    const at = this.#options.clock.monotonic() + ms
    if (at >= this.#lookAt) return false
    this.#lookAt = at
    return true
  }

  /** What was driven to its end, or as far as it goes now, has been written on the way. */
  async settle(batch: readonly Settled<Work>[]): Promise<number> {
    let stale = 0
    let sooner = false
    for (const [work, settlement] of batch) {
      if (settlement.kind !== 'done') await work.giveBack(settlement.kind === 'retry' ? settlement.after : 0)
      if (work.lost.signal.aborted && !work.released) stale++
      if (work.dueIn !== undefined && this.#look(work.dueIn)) sooner = true
      if (this.#works.get(work.id) === work) this.#works.delete(work.id)
    }
    // What is slept for may be due later than that, and what waits for those in quarantine, or for room, may go on.
    if (sooner || this.#quarantined !== undefined || this.#room !== undefined) this.#changed.wake()
    return stale
  }

  async extend(works: readonly Work[]): Promise<void> {
    const { store, lease } = this.#options
    const asked = this.#lease.renewing()
    const kept = [...new Set([...works, ...this.#started])].filter(({ released }) => !released)
    if (kept.length > 0) {
      const mine = new Set(
        await store.extend(
          kept.map(({ id, runner }) => ({ id, runner })),
          lease,
        ),
      )
      // Left out because it is being written, or another's: that it may be written at this moment changes nothing here.
      for (const work of kept) if (!mine.has(work.id) && !work.released) await work.stillMine()
    }
    this.#lease.renewed(asked, kept.length > 0)
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
