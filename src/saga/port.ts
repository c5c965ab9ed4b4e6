import type { SagaState, SagaStatus, StepState } from './state.ts'

/** A step as it is stored. */
export interface StepRecord extends StepState {
  readonly startedAt: Date
  /** When success was seen. */
  readonly executedAt: Date | undefined
  readonly compensatedAt: Date | undefined
}

/** A saga as it is stored, with its steps. */
export interface SagaRecord extends SagaState {
  readonly type: string
  /** Name, version and hash of the definition it began with. */
  readonly definition: string
  readonly aggregate: string | undefined
  readonly tenant: string | undefined
  readonly currentStep: string | undefined
  /** Grows with every write, whoever wrote. */
  readonly version: number
  readonly input: unknown
  /** The token of whoever has claimed it. */
  readonly runner: string | undefined
  /** How often in a row it was taken over from a runner that stopped without a word. */
  readonly takeovers: number
  readonly wakeAt: Date | undefined
  readonly traceparent: string | undefined
  readonly createdAt: Date
  readonly updatedAt: Date
  readonly endedAt: Date | undefined
  readonly steps: readonly StepRecord[]
}

/** A saga that begins. */
export interface NewSaga {
  readonly id: string
  readonly type: string
  readonly definition: string
  readonly aggregate: string | undefined
  readonly tenant: string | undefined
  /** JSON. */
  readonly input: string
  readonly traceparent: string | undefined
  /** The first step is intended with it. */
  readonly state: SagaState
  /** Milliseconds until it is due. */
  readonly wakeIn: number
  /** Whoever inserts it drives it, as if it had claimed it for `wakeIn`. */
  readonly runner: string | undefined
}

/**
 * What is written: the state, and those steps that changed. Fenced: it changes nothing unless the version is still
 * `version`, and the runner still `runner` where one is given.
 */
export interface SagaChange {
  readonly id: string
  readonly version: number
  /** `undefined`: a person or the business; whoever has claimed it keeps it, and finds another version. */
  readonly runner: string | undefined
  readonly state: SagaState
  readonly steps: readonly StepState[]
  /**
   * - `keep`: it goes on; its lease is renewed when less than half is left, so that most writes touch no index.
   * - `release`: it is given back, due in `wakeIn` milliseconds, or never of its own.
   * - `leave`: whoever has claimed it keeps it; when nobody has, as `release`.
   */
  readonly claim: 'keep' | 'release' | 'leave'
  readonly wakeIn: number | undefined
  /** Milliseconds, for `keep`. */
  readonly lease: number
  /** A step got somewhere: what was taken over so far does not count any more. */
  readonly progress: boolean
  /** A person has ended it: nobody need look at it any more. */
  readonly acknowledged?: boolean
}

/** Which sagas a runner asks for. */
export interface Claim {
  readonly definitions: readonly string[]
  readonly count: number
  /** How many of those whose runner stopped without a word. They come apart from others: first, or none. */
  readonly takeovers: number
  readonly runner: string
  /** Milliseconds. */
  readonly lease: number
  /** What was due earlier is left out: a hint, since the beginning of the index is full of what was claimed before. */
  readonly from?: Date | undefined
}

/** A saga that is this runner's until its lease runs out. */
export interface Claimed {
  readonly saga: SagaRecord
  /** Another had it and stopped without a word. */
  readonly takenOver: boolean
  readonly dueAt: Date
}

/** Which sagas. All that is given must hold. */
export interface SagaFilter {
  readonly type?: string
  readonly aggregate?: string
  readonly status?: SagaStatus | readonly SagaStatus[]
  /** Those that wait for a person: held, or failed and not ended by one. */
  readonly attention?: boolean
}

/** How many sagas a list shows, and after which. */
export interface SagaPage {
  /** Default 50, at most 1000. */
  readonly limit?: number
  /** The id of the last one seen: newest first. */
  readonly after?: string
}

/** What a person did to a saga. */
export interface SagaAudit {
  readonly sagaId: string
  readonly at: Date
  readonly by: string
  readonly action: string
  readonly note: string
}

/** Hears when something may be due. */
export interface SagaListener {
  /** Until somebody tells, or `ms`, or `signal`; at once where it was not listening before. */
  wait(ms: number, signal: AbortSignal): Promise<void>
  /** There is work: nobody need tell. */
  busy(): void
  close(): Promise<void>
}

/**
 * Where sagas are kept. Every write is one step, all of it or nothing, and fenced; times that decide are the store's.
 * With a `tx` it is part of that transaction. A write that rejects may have happened: `load` tells.
 */
export interface SagaStore<Tx = unknown> {
  readonly name: string
  /** `false`: there is one of this id already, and nothing was written. Tells an idle runner. */
  insert(tx: Tx | undefined, saga: NewSaga): Promise<boolean>
  /** Whether it was written. `false`: the version or the runner is another. `claim: 'leave'` tells an idle runner. */
  save(tx: Tx | undefined, change: SagaChange): Promise<boolean>
  /** `lock`: nobody else writes it until the transaction ends. */
  load(tx: Tx | undefined, id: string, lock?: boolean): Promise<SagaRecord | undefined>
  /** Those that are due, the longest first. No two callers get the same; what another is writing is left out. */
  claim(claim: Claim): Promise<readonly Claimed[]>
  /** Renews claims; returns the ids of those that are still the caller's. */
  extend(claims: readonly { readonly id: string; readonly runner: string }[], lease: number): Promise<readonly string[]>
  /** Milliseconds until the next one of these definitions is due; negative: since then. `undefined`: none will be. */
  nextDue(definitions: readonly string[]): Promise<number | undefined>
  list(filter: SagaFilter, page: SagaPage): Promise<readonly SagaRecord[]>
  /** How many of each definition have been due for so long; bounded. */
  overdue(ms: number): Promise<readonly { readonly definition: string; readonly count: number }[]>
  audit(tx: Tx | undefined, entry: Omit<SagaAudit, 'at'>): Promise<void>
  audits(id: string): Promise<readonly SagaAudit[]>
  /** Removes sagas that ended so long ago, with their steps. Those that wait for a person stay. */
  clean(options?: { retention?: number; limit?: number }): Promise<number>
  /** Absent, or undefined: nobody can be told, and a runner looks now and then. */
  listen?(): Promise<SagaListener | undefined>
}

/** What a runner needs of a database: transactions, and sagas in it. */
export interface SagaDatabase<Tx = unknown> {
  readonly sagas: SagaStore<Tx>
  withTransaction<T>(fn: (tx: Tx) => Promise<T>, options?: { readonly signal?: AbortSignal }): Promise<T>
}
