/**
 * What can be asked for at any time, in one table; telemetry is what is published when it happens. Each is a number of
 * a table, a store or a worker. Metrics and status pages ask; whoever knows responds.
 */
export const GAUGES = [
  /** Neither published nor dead, scheduled ones included. */
  'outbox.pending',
  /** Leased rows; under an owner what it has taken and not settled. */
  'outbox.locked',
  'outbox.dead',
  'outbox.scheduled',
  /** Keys with events that wait for an earlier one. */
  'outbox.blocked_keys',
  /** Seconds since the oldest event that could go out was created; 0 when there is none. */
  'outbox.oldest',
  /** 1 where a count (label `state`) is an estimate. */
  'outbox.estimated',
  /** 1 while a relay waits for its destination. */
  'outbox.paused',
  /** Sagas that have not ended, by `type` and `state`. */
  'saga.alive',
  /** Sagas that wait for a person, by `type`. */
  'saga.attention',
  /** Seconds since the first saga of a `type` was due. */
  'saga.oldest_due',
  /** Seconds since the first saga of a `type` began to wait for a person. */
  'saga.oldest_attention',
  /** 1 where a count (labels `type` and `state`) is an estimate. */
  'saga.estimated',
  /** Events between a projection and the end of its log. */
  'projection.lag',
  /** Seconds since the first event that a projection has not applied. */
  'projection.lag_seconds',
  'projection.parked',
  /** Seconds for which a transaction has held the log back; 0: none does. */
  'projection.held',
] as const
export type GaugeName = (typeof GAUGES)[number]

/** One answer. Labels come beside the one that says whose it is. */
export interface GaugeValue {
  readonly gauge: GaugeName
  readonly value: number
  readonly labels?: Readonly<Record<string, string>>
}

/** What there are numbers of; also the name of the label that says whose they are. */
export type GaugeSubject = 'table' | 'saga' | 'projection'

/** Somebody who reports for an outbox, for all sagas of a store, or for a projection. */
export interface GaugeSource {
  readonly subject: GaugeSubject
  /** Whose numbers they are: the name of the table, or of the projection. */
  readonly of: string
  /** In which store it is: those of one store and name report the same. Default: in one of its own. */
  readonly store?: object
  /** What is known here at once, of this process alone. */
  local?(): readonly GaugeValue[]
  /**
   * Whether this process is the one that reports for all of it, so that sums over processes are right. `false`: another
   * does. `undefined`: nobody knows, since the store cannot be reached. Where the store has to be asked, a promise.
   */
  leads(): boolean | undefined | Promise<boolean | undefined>
  /** Asks the store. It has `ms` milliseconds: what cannot be counted in that time is estimated. */
  read(ms: number): Promise<readonly GaugeValue[]>
}

/** A worker, as far as those who look need to know it. */
export interface Observed {
  readonly name: string
  status(): { readonly state: string; readonly lastSuccess?: Date; readonly unsettled?: number }
  /** What it can be asked beside. */
  readonly gauges?: GaugeSource | undefined
}

const all = new Set<Observed>()

/** Those that run in this process now. */
export const observed: ReadonlySet<Observed> = all

/** Shows a worker while it runs; returns the way to end that. */
export function observe(worker: Observed): () => void {
  all.add(worker)
  return () => all.delete(worker)
}
