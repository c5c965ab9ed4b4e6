import { Message } from '../core/index.ts'
import type { Delivery } from '../flow/index.ts'
import type { AnySaga } from './definition.ts'
import { decide, evolve } from './machine.ts'
import type { Claimed, SagaChange, SagaRecord, SagaStore } from './port.ts'
import { AT_END, type Command, isOver, type SagaEvent, type SagaState } from './state.ts'

/** So often in a row was it taken over from a runner that died with it: no more. */
const MOST_TAKEOVERS = 5

/** What has moved a saga on, so that its runner was not killed by it. */
const PROGRESS: readonly SagaEvent['type'][] = ['Done', 'Refused', 'Tried', 'Undone', 'UndoTried', 'UndoGaveUp', 'Held']

/** A decision, and what it makes of the saga. */
export interface Decision {
  readonly events: readonly SagaEvent[]
  readonly state: SagaState
}

/** One saga that this process has claimed: what it knows of it, and every write of it, fenced by the token of the claim. */
export class Work implements Delivery<Message> {
  readonly saga: AnySaga
  readonly message: Message
  readonly key = undefined
  readonly size = 1
  attempts = 0
  /** The token of this claim. */
  readonly runner: string
  state: SagaState
  /** What a step said and is not written yet. */
  outcome: Command | undefined
  /** The step that may have run, here or in the hands of another before, while the store still says that it never did. */
  unsure: string | undefined
  /** The last write may have happened or not. */
  doubtful = false
  /** It was given back, and is due in so many milliseconds. */
  dueIn: number | undefined
  /** What a step was refused with. */
  refusal: unknown
  /** Aborted when another has it. */
  readonly lost = new AbortController()
  readonly #store: SagaStore
  readonly #lease: number
  #record: SagaRecord
  #saved: SagaState
  #released = false

  constructor(store: SagaStore, saga: AnySaga, { saga: record, takenOver }: Omit<Claimed, 'dueAt'>, lease: number) {
    this.#store = store
    this.saga = saga
    this.runner = record.runner!
    this.#record = record
    this.#saved = record
    this.state = record
    this.#lease = lease
    const { id, type, tenant } = record
    const extensions = tenant === undefined ? {} : { tenantid: tenant }
    this.message = new Message({ id, type, source: '/saga', extensions }, undefined)
    if (!takenOver) return
    this.unsure = pendingStep(record)
    const reason = `${record.takeovers} runners in a row stopped without a word while they had it`
    this.outcome = record.takeovers >= MOST_TAKEOVERS ? { type: 'hold', reason } : { type: 'takenOver' }
    // It is held with what its step may have done.
    if (this.outcome.type === 'hold') this.state = this.#interrupted().state
  }

  get id(): string {
    return this.#record.id
  }

  get record(): SagaRecord {
    return this.#record
  }

  /** It has no runner any more: it has ended, waits, or was given back. */
  get released(): boolean {
    return this.#released
  }

  decide(command: Command): Decision {
    const events = decide(this.saga.steps, this.state, command)
    return { events, state: events.reduce(evolve, this.state) }
  }

  after(events: readonly SagaEvent[]): SagaState {
    return events.reduce(evolve, this.state)
  }

  /** Only known here so far; written with what comes next. */
  keep({ state }: Decision): void {
    this.state = state
  }

  /**
   * Writes a decision; `false`: the fence refused it, see `reload`. What the decision waits for, holds or ends is given
   * back with the same write; so is everything when `leaving`, due in `pause` milliseconds at the earliest.
   */
  async save<Tx>(tx: Tx | undefined, { events, state }: Decision, leaving = false, pause = 0): Promise<boolean> {
    const waiting = events.find((event) => event.type === 'Waiting')
    const over = state.held !== undefined || isOver(state)
    const release = over || leaving || waiting !== undefined
    const wakeIn = over ? undefined : Math.max(pause, waiting?.after ?? 0)
    if (release) this.dueIn = wakeIn
    const progress = events.some(({ type }) => PROGRESS.includes(type))
    const written = await this.#save(tx, state, { claim: release ? 'release' : 'keep', wakeIn, progress })
    // In a transaction it has happened only when that is committed; whoever began it says so.
    if (written && tx === undefined) this.saved(state, release)
    return written
  }

  /** It is written. */
  saved(state: SagaState, released = state.held !== undefined || isOver(state)): void {
    this.state = state
    this.#saved = state
    this.unsure = undefined
    this.#record = { ...this.#record, version: this.#record.version + 1 }
    this.#released ||= released
  }

  /** Gives it back, due in `wakeIn` milliseconds, with all that is known of it by now. */
  async giveBack(wakeIn: number): Promise<void> {
    while (!this.#released && !this.lost.signal.aborted) {
      if (this.doubtful && !(await this.reload())) return
      if (await this.save(undefined, this.#known(), true, wakeIn)) return
      if (!(await this.reload())) return
    }
  }

  /** What a step said and is not written yet, all but the end; else that nobody knows what it did. */
  #known(): Decision {
    if (this.outcome === undefined) return this.#interrupted()
    const events = beforeSending(this.decide(this.outcome).events)
    return { events, state: this.after(events) }
  }

  #interrupted(): Decision {
    const isUnsure = this.unsure !== undefined && pendingStep(this.state) === this.unsure
    return isUnsure ? this.decide({ type: 'interrupted' }) : { events: [], state: this.state }
  }

  /** What is stored; `false`: another has it by now, and nothing of this may be written any more. */
  async reload(): Promise<boolean> {
    const record = await this.stillMine()
    this.doubtful = false
    if (record === undefined) return false
    this.#record = record
    this.#saved = record
    this.state = record
    return true
  }

  /** What is stored, unless another has it by now. */
  async stillMine(): Promise<SagaRecord | undefined> {
    const record = await this.#store.load(undefined, this.id)
    if (record?.runner === this.runner) return record
    this.lost.abort(new Error('another has claimed this saga, or it was given back'))
    return undefined
  }

  async #save(
    tx: unknown,
    state: SagaState,
    rest: Pick<SagaChange, 'claim' | 'wakeIn' | 'progress'>,
  ): Promise<boolean> {
    const { id, version } = this.#record
    const steps = state.steps.filter((step) => !this.#saved.steps.includes(step))
    const fence = { id, version, runner: this.runner, lease: this.#lease }
    const doubtful = this.doubtful
    this.doubtful = true
    const written = await this.#store.save(tx, { ...fence, state, steps, ...rest })
    this.doubtful = doubtful
    return written
  }

  /** What steps have returned so far. */
  get results(): Record<string, unknown> {
    return resultsOf(this.state)
  }
}

/** The step that may be running. Not always the last: an early one may stand behind it. */
function pendingStep({ steps }: SagaState): string | undefined {
  return steps.findLast(({ status }) => status === 'pending')?.name
}

/** What can be written without its messages: all that comes before the first, but the end. The machine goes on from there. */
export function beforeSending(events: readonly SagaEvent[]): readonly SagaEvent[] {
  const first = events.findIndex(({ type }) => type === 'Sent')
  return events.slice(0, first < 0 ? events.length : first).filter(({ type }) => type !== 'Ended')
}

export function resultsOf({ steps }: SagaState): Record<string, unknown> {
  const done = steps.filter(({ name, executed }) => executed && name !== AT_END)
  return Object.fromEntries(done.map(({ name, output }) => [name, output]))
}
