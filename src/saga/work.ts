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
  /** A step is being called: whoever has this saga next does not know how that ended. */
  calling = false
  /** The last write may have happened or not. */
  doubtful = false
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
    const reason = `${record.takeovers} runners in a row stopped without a word while they had it`
    this.outcome = record.takeovers >= MOST_TAKEOVERS ? { type: 'hold', reason } : { type: 'takenOver' }
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
   * back with the same write; so is everything when `stopping`.
   */
  async save<Tx>(tx: Tx | undefined, { events, state }: Decision, stopping = false): Promise<boolean> {
    const waiting = events.find((event) => event.type === 'Waiting')
    const over = state.held !== undefined || isOver(state)
    const release = over || stopping || waiting !== undefined
    const wakeIn = over ? undefined : (waiting?.after ?? 0)
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
    this.#record = { ...this.#record, version: this.#record.version + 1 }
    this.#released ||= released
  }

  /** Gives it back, due in `wakeIn` milliseconds. What a step may have done by now is unknown to whoever has it next. */
  async giveBack(wakeIn: number): Promise<void> {
    while (!this.#released && !this.lost.signal.aborted) {
      if (this.doubtful && !(await this.reload())) return
      const { state } = this.calling ? this.decide({ type: 'interrupted' }) : this
      const over = state.held !== undefined || isOver(state)
      const change = { claim: 'release', wakeIn: over ? undefined : wakeIn, progress: false } as const
      if (await this.#save(undefined, state, change)) return this.saved(state, true)
      if (!(await this.reload())) return
    }
  }

  /** What is stored; `false`: another has it by now, and nothing of this may be written any more. */
  async reload(): Promise<boolean> {
    const record = await this.#store.load(undefined, this.id)
    this.doubtful = false
    if (record?.runner !== this.runner) {
      this.lost.abort(new Error('another has claimed this saga, or it was given back'))
      return false
    }
    this.#record = record
    this.#saved = record
    this.state = record
    return true
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

export function resultsOf({ steps }: SagaState): Record<string, unknown> {
  const done = steps.filter(({ name, executed }) => executed && name !== AT_END)
  return Object.fromEntries(done.map(({ name, output }) => [name, output]))
}
