import { type Clock, checkOptions, milliseconds, Wakeup, wholeNumber } from '../core/index.ts'
import type {
  Claim,
  Claimed,
  CountedState,
  NewSaga,
  SagaAudit,
  SagaChange,
  SagaEnd,
  SagaFilter,
  SagaListener,
  SagaPage,
  SagaRecord,
  SagaStats,
  SagaStore,
  StepRecord,
} from '../saga/port.ts'
import type { SagaState } from '../saga/state.ts'
import { begin, type Locks, type MemoryTransaction, transactionOf } from './transaction.ts'

interface SagaRow extends SagaRecord {
  /** Since when it waits for a person. */
  readonly attentionAt: Date | undefined
}

/** Sagas in memory. What a transaction writes is locked until its end, and seen after its commit. */
export class MemorySagas implements SagaStore<MemoryTransaction> {
  readonly name = 'sagas'
  readonly #clock: Clock
  readonly #locks: Locks
  readonly #waiting: Wakeup
  /** How often listeners were notified. */
  #changes = 0
  readonly #rows = new Map<string, SagaRow>()
  readonly #audits: SagaAudit[] = []
  /** Being written: what claims skip. */
  readonly #busy = new Set<string>()
  /** Written in transactions that are open. */
  readonly #uncommitted = new Map<string, SagaRow>()

  constructor(clock: Clock, locks: Locks) {
    this.#clock = clock
    this.#locks = locks
    this.#waiting = new Wakeup(clock)
  }

  insert(tx: MemoryTransaction | undefined, saga: NewSaga): Promise<boolean> {
    return this.#in(tx, saga.id, (transaction) => {
      if (this.#row(saga.id) !== undefined) return false
      const { state, wakeIn, input, ...rest } = saga
      const now = new Date(this.#clock.now())
      const steps = state.steps.map((step) => ({ ...step, ...NEW_STEP, startedAt: now }))
      this.#write(transaction, {
        ...rest,
        ...state,
        ...NEW_SAGA,
        currentStep: currentStep(state),
        input: JSON.parse(input),
        wakeAt: this.#after(wakeIn),
        createdAt: now,
        updatedAt: now,
        steps,
      })
      if (saga.runner === undefined && wakeIn < SOON) transaction.atCommit(() => this.#notify())
      return true
    })
  }

  save(tx: MemoryTransaction | undefined, change: SagaChange): Promise<boolean> {
    return this.#in(tx, change.id, (transaction) => {
      const row = this.#row(change.id)
      if (row?.version !== change.version || (change.runner !== undefined && row.runner !== change.runner)) return false
      const { state, claim, progress } = change
      const now = new Date(this.#clock.now())
      const ended = state.status !== 'running' && state.status !== 'compensating'
      const waits = (state.held !== undefined || state.status === 'failed') && change.acknowledged !== true
      this.#write(transaction, {
        ...row,
        status: state.status,
        held: state.held,
        error: state.error,
        currentStep: currentStep(state),
        version: row.version + 1,
        runner: claim === 'release' ? undefined : row.runner,
        wakeAt: this.#wakeAt(row, change),
        takeovers: progress ? 0 : row.takeovers,
        updatedAt: now,
        endedAt: ended ? (row.endedAt ?? now) : undefined,
        attentionAt: waits ? (row.attentionAt ?? now) : undefined,
        steps: this.#steps(row, change, now),
      })
      const soon = claim === 'release' && (change.wakeIn ?? SOON) < SOON
      if (claim === 'leave' || soon) transaction.atCommit(() => this.#notify())
      return true
    })
  }

  #wakeAt({ runner, wakeAt }: SagaRow, { claim, wakeIn, lease }: SagaChange): Date | undefined {
    if (claim === 'keep') {
      return wakeAt !== undefined && wakeAt.getTime() > this.#clock.now() + lease / 2 ? wakeAt : this.#after(lease)
    }
    if (claim === 'stay') return wakeAt
    if (claim === 'leave' && runner !== undefined && wakeAt !== undefined) return wakeAt
    return wakeIn === undefined ? undefined : this.#after(wakeIn)
  }

  #steps(row: SagaRow, { state, steps: changed }: SagaChange, now: Date): readonly StepRecord[] {
    return state.steps.map((given) => {
      const old = row.steps.find(({ name }) => name === given.name)
      const step = changed.find(({ name }) => name === given.name)
      if (step === undefined) return old!
      const { name, key, status, executed, attempts, spent, undos, sends, error } = step
      // As it comes back from a store: nobody else has this object.
      const output = step.output === undefined ? undefined : JSON.parse(JSON.stringify(step.output))
      return {
        ...{ name, key, status, output, executed, attempts, spent: Math.round(spent), undos, sends, error },
        startedAt: old?.startedAt ?? now,
        executedAt: old?.executedAt ?? (executed ? now : undefined),
        compensatedAt: status === 'compensated' ? now : undefined,
      }
    })
  }

  async load(tx: MemoryTransaction | undefined, id: string, lock = false): Promise<SagaRecord | undefined> {
    if (tx === undefined) return this.#rows.get(id)
    if (lock) await this.#in(tx, id, () => true)
    return this.#row(id)
  }

  async ended(ids: readonly string[]): Promise<readonly SagaEnd[]> {
    const rows = ids.map((id) => this.#rows.get(id)).filter((row) => row !== undefined)
    return rows.map((row) => {
      const { id, type, held, endedAt } = row
      return { id, type, saga: endedAt === undefined && held === undefined ? undefined : row }
    })
  }

  async claim({ definitions, count, takeovers, runner, lease }: Claim): Promise<readonly Claimed[]> {
    const due = [...this.#rows.values()]
      .filter((row) => definitions.includes(row.definition) && this.#isDue(row))
      .sort((a, b) => a.wakeAt!.getTime() - b.wakeAt!.getTime())
    const silent = due.filter((row) => row.runner !== undefined)
    const fresh = silent.filter((row) => row.takeovers === 0).slice(0, takeovers)
    const apart = fresh.length > 0 ? fresh : silent.slice(0, Math.min(1, takeovers))
    const chosen = apart.length > 0 ? apart : due.filter((row) => row.runner === undefined).slice(0, count)
    return chosen.map((row) => {
      const takenOver = row.runner !== undefined
      const saga: SagaRow = {
        ...row,
        runner,
        version: row.version + 1,
        takeovers: row.takeovers + (takenOver ? 1 : 0),
        wakeAt: this.#after(lease),
        updatedAt: new Date(this.#clock.now()),
      }
      this.#rows.set(row.id, saga)
      return { saga, takenOver, dueAt: row.wakeAt! }
    })
  }

  async extend(
    claims: readonly { readonly id: string; readonly runner: string }[],
    lease: number,
  ): Promise<readonly string[]> {
    return claims.flatMap(({ id, runner }) => {
      const row = this.#rows.get(id)
      if (row?.runner !== runner || row.wakeAt === undefined) return []
      this.#rows.set(id, { ...row, wakeAt: this.#after(lease) })
      return [id]
    })
  }

  async nextDue(definitions: readonly string[], claimed = false): Promise<number | undefined> {
    const times = [...this.#rows.values()]
      .filter((row) => definitions.includes(row.definition) && row.wakeAt !== undefined && row.held === undefined)
      .filter((row) => !claimed || row.runner !== undefined)
      .map((row) => row.wakeAt!.getTime())
    return times.length === 0 ? undefined : Math.min(...times) - this.#clock.now()
  }

  async list(filter: SagaFilter, page: SagaPage, _tx?: MemoryTransaction): Promise<readonly SagaRecord[]> {
    const { type, aggregate, status, attention = false } = filter
    const limit = wholeNumber('sagas: limit', page.limit ?? 50, { max: 1000 })
    const statuses = status === undefined || typeof status !== 'string' ? status : [status]
    return [...this.#rows.values()]
      .filter((row) => type === undefined || row.type === type)
      .filter((row) => aggregate === undefined || row.aggregate === aggregate)
      .filter((row) => statuses === undefined || statuses.includes(row.status))
      .filter((row) => !attention || row.attentionAt !== undefined)
      .filter((row) => page.after === undefined || row.id < page.after)
      .sort((a, b) => (a.id < b.id ? 1 : -1))
      .slice(0, limit)
  }

  async overdue(ms: number): Promise<readonly { definition: string; count: number }[]> {
    const counts = new Map<string, number>()
    for (const { definition, wakeAt, held } of this.#rows.values()) {
      if (wakeAt === undefined || held !== undefined || wakeAt.getTime() >= this.#clock.now() - ms) continue
      counts.set(definition, (counts.get(definition) ?? 0) + 1)
    }
    return [...counts].map(([definition, count]) => ({ definition, count }))
  }

  async stats(): Promise<readonly SagaStats[]> {
    const now = this.#clock.now()
    const since = (times: readonly (Date | undefined)[]) =>
      Math.max(0, ...times.map((at) => (at === undefined ? 0 : (now - at.getTime()) / 1000)))
    const found = new Map<string, SagaRow[]>()
    for (const row of this.#rows.values()) {
      if (row.endedAt !== undefined && row.attentionAt === undefined) continue
      found.set(row.type, [...(found.get(row.type) ?? []), row])
    }
    return [...found].map(([type, rows]) => {
      const count = (state: CountedState) => ({
        count: rows.filter((row) => stateOf(row) === state).length,
        estimated: false,
      })
      return {
        type,
        counts: {
          running: count('running'),
          compensating: count('compensating'),
          held: count('held'),
          failed: count('failed'),
        },
        dueSeconds: since(rows.filter(({ held }) => held === undefined).map(({ wakeAt }) => wakeAt)),
        waitingSeconds: since(rows.map(({ attentionAt }) => attentionAt)),
      }
    })
  }

  audit(tx: MemoryTransaction | undefined, entry: Omit<SagaAudit, 'at'>): Promise<void> {
    return this.#in(tx, entry.sagaId, (transaction) => {
      transaction.atCommit(() => this.#audits.push({ ...entry, at: new Date(this.#clock.now()) }))
    })
  }

  async audits(id: string): Promise<readonly SagaAudit[]> {
    return this.#audits.filter(({ sagaId }) => sagaId === id)
  }

  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('sagas.clean', options, { retention: true, limit: true })
    const retention = wholeNumber('sagas.clean: retention', options.retention ?? milliseconds('30d'), { min: 0 })
    const limit = wholeNumber('sagas.clean: limit', options.limit ?? 10_000, { max: 1_000_000 })
    const old = [...this.#rows.values()].filter(
      ({ endedAt, attentionAt }) =>
        endedAt !== undefined && attentionAt === undefined && endedAt.getTime() < this.#clock.now() - retention,
    )
    for (const { id } of old.slice(0, limit)) this.#rows.delete(id)
    return Math.min(old.length, limit)
  }

  async listen(): Promise<SagaListener> {
    let heard = this.#changes
    const hears = () => {
      const before = heard
      heard = this.#changes
      return before !== heard
    }
    return {
      wait: async (ms, signal) => {
        if (hears()) return true
        await this.#waiting.pause(ms, signal)
        return hears()
      },
      busy: () => {},
      close: async () => {},
    }
  }

  #notify(): void {
    this.#changes++
    this.#waiting.wake()
  }

  #isDue({ id, wakeAt, held }: SagaRow): boolean {
    return wakeAt !== undefined && wakeAt.getTime() <= this.#clock.now() && held === undefined && !this.#busy.has(id)
  }

  #after(ms: number): Date {
    return new Date(this.#clock.now() + ms)
  }

  /** As the transaction that has locked it sees it. */
  #row(id: string): SagaRow | undefined {
    return this.#uncommitted.get(id) ?? this.#rows.get(id)
  }

  #write(tx: ReturnType<typeof transactionOf>, row: SagaRow): void {
    this.#uncommitted.set(row.id, row)
    tx.atCommit(() => this.#rows.set(row.id, row))
  }

  /** In the transaction that was given, or in one of its own; after whoever else is writing this saga. */
  async #in<T>(
    tx: MemoryTransaction | undefined,
    id: string,
    fn: (transaction: ReturnType<typeof transactionOf>) => T,
  ): Promise<T> {
    if (tx === undefined) return begin((own) => this.#in(own, id, fn))
    const transaction = transactionOf(tx)
    await this.#locks.take(transaction, `saga ${id}`)
    this.#busy.add(id)
    transaction.atEnd(() => {
      this.#busy.delete(id)
      this.#uncommitted.delete(id)
    })
    return fn(transaction)
  }
}

/** What is due later is found by a runner that looks now and then, in milliseconds. */
const SOON = 120_000

/** Of one that has not ended, or has failed. */
function stateOf({ status, held }: SagaRow): CountedState {
  return held === undefined ? (status as CountedState) : 'held'
}

/** An early step is not the one it is at. */
function currentStep({ steps }: SagaState): string | undefined {
  return (steps.findLast(({ status }) => status !== 'completed') ?? steps.at(-1))?.name
}

const NEW_SAGA = { version: 1, takeovers: 0, endedAt: undefined, attentionAt: undefined }
const NEW_STEP = { executedAt: undefined, compensatedAt: undefined }
