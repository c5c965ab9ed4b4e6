import type { OutboxAdmin } from '../outbox/admin.ts'
import type { Inbox } from '../store/inbox.ts'
import type { Outbox } from '../store/store.ts'
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
   * - `stay`: whoever has claimed it keeps it, and it is due when it was.
   */
  readonly claim: 'keep' | 'release' | 'leave' | 'stay'
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

/** In which states sagas are counted: those that have not ended, and those that failed and that no person has ended. */
export type CountedState = 'running' | 'compensating' | 'held' | 'failed'

/** How many sagas of a type are in which state. */
export interface SagaStats {
  readonly type: string
  readonly counts: Readonly<Record<CountedState, { readonly count: number; readonly estimated: boolean }>>
  /** For how many seconds the first has been due and was not driven; 0 when none is. */
  readonly dueSeconds: number
  /** For how many seconds the first has waited for a person; 0 when none does. */
  readonly waitingSeconds: number
}

/** Whether a saga has ended. */
export interface SagaEnd {
  readonly id: string
  readonly type: string
  /** `undefined`: it goes on. */
  readonly saga: SagaRecord | undefined
}

/** Hears when something may be due. */
export interface SagaListener {
  /**
   * Until notified, or `ms`, or `signal`; at once where there was a notification since the last call, or it was not
   * listening before. Returns whether there may be something: also when `signal` came at the same time.
   */
  wait(ms: number, signal: AbortSignal): Promise<boolean>
  /**
   * Whether this is the one who reports all sagas when somebody asks for numbers: at most one at a time is. Absent: it
   * cannot be found out, and each of them reports.
   */
  tellsOfAll?(): Promise<boolean>
  /** There is work: no notification is needed. */
  busy(): void
  close(): Promise<void>
}

/**
 * Where sagas are kept. Every write is one step, all of it or nothing, and fenced; times that decide are the store's.
 * With a `tx` it is part of that transaction. A write that rejects may have happened: `load` shows it.
 */
export interface SagaStore<Tx = unknown> {
  readonly name: string
  /** `false`: there is one of this id already, and nothing was written. Notifies an idle runner if it is due soon. */
  insert(tx: Tx | undefined, saga: NewSaga): Promise<boolean>
  /**
   * Whether it was written. `false`: the version or the runner is another. Notifies an idle runner if what it leaves or
   * gives back is due soon: whoever gives it back may be about to stop.
   */
  save(tx: Tx | undefined, change: SagaChange): Promise<boolean>
  /** `lock`: nobody else writes it until the transaction ends. */
  load(tx: Tx | undefined, id: string, lock?: boolean): Promise<SagaRecord | undefined>
  /** For those who wait: each of these sagas that is there, and what is stored of it once it has ended or is held. */
  ended(ids: readonly string[]): Promise<readonly SagaEnd[]>
  /** Those that are due, the longest first. No two callers get the same; what another is writing is left out. */
  claim(claim: Claim): Promise<readonly Claimed[]>
  /** Renews claims; returns the ids of those that are still the caller's. */
  extend(claims: readonly { readonly id: string; readonly runner: string }[], lease: number): Promise<readonly string[]>
  /**
   * Milliseconds until the next one of these definitions is due; negative: since then. `undefined`: none will be. A store
   * may return less, to be asked again then.
   * `claimed`: only of those that a runner has, so that a negative number means one that stopped without a word.
   */
  nextDue(definitions: readonly string[], claimed?: boolean): Promise<number | undefined>
  list(filter: SagaFilter, page: SagaPage, tx?: Tx): Promise<readonly SagaRecord[]>
  /** How many of each definition have been due for so long; bounded. */
  overdue(ms: number): Promise<readonly { readonly definition: string; readonly count: number }[]>
  /**
   * How many there are in which state. More than `exactUpTo` of one are estimated, and what cannot be counted in `within`
   * milliseconds. Absent: there are no gauges.
   */
  stats?(exactUpTo?: number, within?: number): Promise<readonly SagaStats[]>
  /** For gauges: the client that it was given. What has one name there is the same. */
  pool?(): object
  audit(tx: Tx | undefined, entry: Omit<SagaAudit, 'at'>): Promise<void>
  audits(id: string): Promise<readonly SagaAudit[]>
  /** Removes sagas that ended so long ago, with their steps. Those that wait for a person stay. */
  clean(options?: { retention?: number; limit?: number }): Promise<number>
  /** Absent, or undefined: there are no notifications, and a runner polls. */
  listen?(): Promise<SagaListener | undefined>
}

/** What sagas need of a database: transactions, and sagas in it; for requests an outbox, for their replies an inbox. */
export interface SagaDatabase<Tx = unknown> {
  readonly sagas: SagaStore<Tx>
  readonly outbox?: Pick<Outbox<Tx>, 'enqueue'> & { readonly admin?: Pick<OutboxAdmin, 'show'> }
  readonly inbox?: Pick<Inbox<Tx>, 'receive'>
  withTransaction<T>(fn: (tx: Tx) => Promise<T>, options?: { readonly signal?: AbortSignal }): Promise<T>
}
