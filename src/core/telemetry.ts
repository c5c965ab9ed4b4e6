import { channel } from 'node:diagnostics_channel'

/**
 * Everything that can be observed, in one table. Emitters publish to it, and logs, metrics and traces are nothing
 * but subscribers. Values are ids, counts, names and times, never payloads. Times are milliseconds.
 */
export interface TelemetryEvents {
  /** A session with a source was opened, or could not be. */
  'flow.opened': { flow: string }
  'flow.open_failed': { flow: string; error: unknown; retryIn: number }
  /** The right to settle is gone (a lease, a channel, leadership): what was in hand will come again elsewhere. */
  'flow.lost': { flow: string; inHand: number; reason: unknown }
  /** Taking failed; the flow backs off. */
  'flow.take_failed': { flow: string; error: unknown; retryIn: number }
  'flow.taken': { flow: string; count: number }
  /** What the step depends on is away: nothing is dispatched until a probe succeeds. */
  'flow.paused': { flow: string; error: unknown; retryIn: number; failures: number }
  'flow.resumed': { flow: string; pausedFor: number }
  /** Settlements were written. `stale` of them changed nothing, because another had taken over. */
  'flow.settled': {
    flow: string
    done: number
    retry: number
    dead: number
    release: number
    stale: number
    took: number
  }
  /** Settlements could not be written. They are tried again unless the session is lost. */
  'flow.settle_failed': { flow: string; count: number; error: unknown; lost: boolean }
  /**
   * The source refuses to write what was decided for one message (`settlement`: done, retry, dead, release). It is written
   * as `dead` instead; or, when that is false, put aside in this process and tried again, less and less often.
   */
  'settlement.refused': {
    flow: string
    type: string
    id: string
    tenant: string | undefined
    settlement: 'done' | 'retry' | 'dead' | 'release'
    dead: boolean
    error: unknown
  }
  /**
   * Messages of one type and tenant had the same result, in one call of the step or one after the other in next to no
   * time: what metrics count. Each took `took`, or so long on average.
   */
  'messages.handled': {
    flow: string
    type: string
    tenant: string | undefined
    result: 'done' | 'retry' | 'dead' | 'release'
    count: number
    took: number
  }
  /** One message was handled. Published only when somebody listens. `topic` is its routing key or subject, if known. */
  'message.handled': {
    flow: string
    type: string
    id: string
    result: 'done' | 'retry' | 'dead' | 'release'
    took: number
    attempt: number
    tenant: string | undefined
    topic?: string | undefined
    error: unknown
  }
  'message.dead': {
    flow: string
    type: string
    id: string
    reason: string
    attempt: number
    tenant: string | undefined
    topic?: string | undefined
  }
  /** A message failed alone, again and again, where others did not: it is charged. */
  'message.suspected': {
    flow: string
    type: string
    id: string
    error: unknown
    attempt?: number | undefined
    tenant?: string | undefined
    topic?: string | undefined
  }
  /** A per-message acknowledgement failed. */
  'ack.failed': { type: string; id: string; error: unknown }
  'router.unknown_type': { router: string; type: string; id: string; policy: string }
  'router.newer_version': { router: string; type: string; id: string; version: number; newestKnown: number }
  /** A fire-and-forget subscriber failed. */
  'bus.subscriber_failed': { type: string; id: string; error: unknown }
  /** A commit came after its lease on the message, and changed nothing: another has it, or may have it by now. */
  'inbox.fenced': { store: string; key: string }
  'worker.started': { worker: string }
  'worker.stopped': { worker: string; took: number }
  /** A worker ended with an error, and has given back what it had. */
  'worker.failed': { worker: string; error: unknown }
  /** A worker that ended with an error, or could not be started again, is started by its parent after `retryIn`. */
  'worker.restarting': { worker: string; parent: string; error: unknown; retryIn: number; failures: number }
  'task.failed': { task: string; error: unknown; retryIn: number }
  'task.ran': { task: string; took: number }
  /** A cleaner has removed what was no longer needed: `count` rows one by one, and whole partitions. */
  'cleaner.cleaned': { store: string; count: number; partitions: number; took: number }
  /** How a relay reads its outbox, and why. */
  'relay.reader': { table: string; reader: string; shards: number; why: string }
  /**
   * A relay may not read at present: `holder` may, until then unless it is renewed. No `shard`: it reads in another way.
   * `overdue`: it has missed a renewal, and seems to be gone.
   */
  'relay.waiting': {
    table: string
    shard: number | undefined
    holder: string
    until: string
    overdue: boolean
    reason: string
  }
  /** Leases that had run out were taken over: whoever held them died, or was cut off. */
  'leases.expired': { table: string; count: number }
  /** Events were committed to an outbox on Redis; `duplicates` were there already and changed nothing. */
  'outbox.enqueued': { outbox: string; count: number; duplicates: number }
  /** What did not belong together in an outbox on Redis was put right. */
  'outbox.repaired': { outbox: string; restored: number; dropped: number; released: number; headed: number }
  /** Intents whose time had come were decided, by outcome. */
  'due.decided': { due: string; enqueued: number; already: number; suppressed: number; other: number; failed: number }
  /** A step of a saga was called (`call`), and what came of it. One trace per saga: `traceparent` is what it was started with. */
  'saga.step': {
    type: string
    id: string
    tenant: string | undefined
    traceparent: string | undefined
    step: string
    call: 'run' | 'check' | 'undo'
    result: string
    took: number
    attempt: number
    error: unknown
  }
  /** A saga has ended: completed, compensated or failed. `took` is the time since it was started. */
  'saga.ended': {
    type: string
    id: string
    tenant: string | undefined
    traceparent: string | undefined
    status: string
    took: number
  }
  /** A saga waits for a person. */
  'saga.held': {
    type: string
    id: string
    tenant: string | undefined
    traceparent: string | undefined
    reason: string
  }
  /** A runner stopped without a word, and another has its saga now. `steps` are those known to be done. */
  'saga.taken_over': {
    type: string
    id: string
    tenant: string | undefined
    takeovers: number
    steps: readonly string[]
  }
  /** A runner's write changed nothing, because another has the saga by now. */
  'saga.fenced': { type: string; id: string }
  /** All sagas fail at this step (`type.step`, or its undo): it is waited for, and nobody's time is counted. */
  'saga.step_paused': { step: string; error: unknown; retryIn: number }
  'saga.step_resumed': { step: string; failures: number }
  /** Sagas that have been due for a minute and that nobody claims: unregistered, or `changed` under the same version. */
  'saga.overdue': { definition: string; count: number; registered: boolean; changed: boolean }
  /** Something a person should know: a setting that can lose data, a fallback that was taken. */
  warning: { where: string; message: string }
}

export type TelemetryName = keyof TelemetryEvents

export interface TelemetryChannel<Name extends TelemetryName> {
  readonly name: Name
  readonly active: boolean
  publish(event: TelemetryEvents[Name]): void
  /** Returns the way to stop listening. A subscriber that throws harms nobody but itself. */
  subscribe(listener: (event: TelemetryEvents[Name]) => void): () => void
}

export const TELEMETRY_PREFIX = 'waybill:'

function open<Name extends TelemetryName>(name: Name): TelemetryChannel<Name> {
  const inner = channel(TELEMETRY_PREFIX + name)
  return {
    name,
    get active() {
      return inner.hasSubscribers
    },
    publish: (event) => inner.publish(event),
    subscribe(listener) {
      const wrapped = (event: unknown) => {
        try {
          const result = listener(event as TelemetryEvents[Name]) as unknown
          if (result instanceof Promise) result.catch(() => {})
        } catch {
          // Node would raise this as an uncaught exception: watching must not end what is watched.
        }
      }
      inner.subscribe(wrapped)
      return () => inner.unsubscribe(wrapped)
    },
  }
}

const names = {
  'flow.opened': 1,
  'flow.open_failed': 1,
  'flow.lost': 1,
  'flow.take_failed': 1,
  'flow.taken': 1,
  'flow.paused': 1,
  'flow.resumed': 1,
  'flow.settled': 1,
  'flow.settle_failed': 1,
  'settlement.refused': 1,
  'messages.handled': 1,
  'message.handled': 1,
  'message.dead': 1,
  'message.suspected': 1,
  'ack.failed': 1,
  'router.unknown_type': 1,
  'router.newer_version': 1,
  'bus.subscriber_failed': 1,
  'inbox.fenced': 1,
  'worker.started': 1,
  'worker.stopped': 1,
  'worker.failed': 1,
  'worker.restarting': 1,
  'task.failed': 1,
  'task.ran': 1,
  'cleaner.cleaned': 1,
  'relay.reader': 1,
  'relay.waiting': 1,
  'leases.expired': 1,
  'outbox.enqueued': 1,
  'outbox.repaired': 1,
  'due.decided': 1,
  'saga.step': 1,
  'saga.ended': 1,
  'saga.held': 1,
  'saga.taken_over': 1,
  'saga.fenced': 1,
  'saga.step_paused': 1,
  'saga.step_resumed': 1,
  'saga.overdue': 1,
  warning: 1,
} satisfies Record<TelemetryName, 1>

export const TELEMETRY_NAMES = Object.keys(names) as TelemetryName[]

/** `telemetry['flow.paused'].subscribe(…)` */
export const telemetry = Object.fromEntries(TELEMETRY_NAMES.map((name) => [name, open(name)])) as {
  readonly [Name in TelemetryName]: TelemetryChannel<Name>
}

/** Tells a person once per process and place; what repeats is not read. */
export function warnOnce(where: string, message: string): void {
  const key = `${where}\0${message}`
  if (warned.has(key)) return
  warned.add(key)
  telemetry.warning.publish({ where, message })
}

const warned = new Set<string>()
