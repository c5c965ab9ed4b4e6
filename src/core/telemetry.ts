import { channel } from 'node:diagnostics_channel'

/**
 * Everything that can be observed, in one table. Emitters publish to it, and logs, metrics and traces are nothing
 * but subscribers. Values are ids, counts, names and times, never payloads. Times are milliseconds.
 */
export interface TelemetryEvents {
  /** A session with a source was opened, or could not be. */
  'flow.opened': { flow: string }
  'flow.open_failed': { flow: string; error: unknown; retryIn: number }
  /** The right to settle is gone (a lease, a channel, leadership): what was unsettled will come again elsewhere. */
  'flow.lost': { flow: string; unsettled: number; reason: unknown }
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
    topic?: string | undefined
    settlement: 'done' | 'retry' | 'dead' | 'release'
    dead: boolean
    error: unknown
  }
  /**
   * Messages of one type, tenant and topic had the same result, in one call of the step or one after the other in next to
   * no time: what metrics count. Each took `took`, or so long on average. A relay's have the `table` they came from, the
   * topic, and how long after its creation each was published, on the clock of its store.
   */
  'messages.handled': {
    flow: string
    type: string
    tenant: string | undefined
    result: 'done' | 'retry' | 'dead' | 'release'
    count: number
    took: number
    table?: string | undefined
    topic?: string | undefined
    ages?: readonly number[] | undefined
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
    /**
     * Of a relay's: the outbox, where to (`rabbitmq`), when it was created there and what time it is there, and the trace it
     * belongs to.
     */
    table?: string | undefined
    system?: string | undefined
    created?: number | undefined
    storeTime?: number | undefined
    traceparent?: string | undefined
  }
  /** A message failed and is tried again. `table`: it stands in this outbox. */
  'message.retrying': {
    flow: string
    type: string
    id: string
    error: unknown
    attempt: number
    retryIn: number
    tenant: string | undefined
    topic?: string | undefined
    table?: string | undefined
  }
  /** A message is put aside for a person. `table`: it stands in this outbox. `reason` is the summary of `error`. */
  'message.dead': {
    flow: string
    type: string
    id: string
    reason: string
    /** What was thrown, where it was thrown in this process. */
    error?: unknown
    attempt: number
    tenant: string | undefined
    topic?: string | undefined
    table?: string | undefined
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
  /** A message that this subscriber has handled before: its handler was skipped. */
  'inbox.duplicate': { subscriber: string; type: string; id: string }
  'worker.started': { worker: string }
  'worker.stopped': { worker: string; took: number }
  /** A worker has waited for some seconds: for whom or what. Published once, until it goes on. */
  'worker.waiting': { worker: string; reason: string; waitedFor: number }
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
  /** Leases that had run out were taken over: their holder crashed, or was cut off. */
  'leases.expired': { table: string; count: number }
  /** This process owns a shard of a table from now on. */
  'relay.leads': { table: string; shard: number; holder: string }
  /**
   * Events of one topic were accepted by `enqueue`; `duplicates` were there already and changed nothing. Whether the
   * transaction commits is not known yet; on Redis it has.
   */
  'outbox.enqueued': { table: string; topic: string; count: number; duplicates: number }
  /** What did not belong together in an outbox on Redis was put right. */
  'outbox.repaired': { table: string; restored: number; dropped: number; released: number; headed: number }
  /** Intents whose time had come were decided, by outcome. */
  'due.decided': { due: string; enqueued: number; already: number; suppressed: number; other: number; failed: number }
  /** A saga was started; or will be, with the transaction it was started in. */
  'saga.started': { type: string; id: string; tenant: string | undefined; traceparent: string | undefined }
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
  /** A reply to a step of a saga arrived. `means`: reply, refused or undone; `changed`: it was not a repeat. */
  'saga.reply': {
    type: string
    id: string
    tenant: string | undefined
    traceparent: string | undefined
    step: string
    reply: string
    means: string
    changed: boolean
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
  /** A projector has become the owner of a projection (`order_list_view/1`), and goes on behind `position`. */
  'projection.owned': { projection: string; epoch: string; position: string }
  /** A batch was applied, up to `position`: `count` events that it has handlers for, `parked` of them put aside. */
  'projection.applied': { projection: string; count: number; parked: number; position: string; took: number }
  /** An event cannot be applied: it is put aside, and later ones of its key wait behind it. */
  'projection.parked': { projection: string; type: string; position: string; reason: string; error: unknown }
  /** A parked event was applied, and its key goes on. */
  'projection.unparked': { projection: string; type: string; position: string; attempts: number }
  /** A projector's write changed nothing, because another has the projection by now. */
  'projection.fenced': { projection: string }
  /**
   * An open transaction keeps a log back: nobody may read past what it may still write. Published again while it lasts;
   * `heldFor` 0: it has ended.
   */
  'projection.held': { log: string; pid: number | undefined; prepared: string | undefined; heldFor: number }
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
  'message.retrying': 1,
  'message.dead': 1,
  'message.suspected': 1,
  'ack.failed': 1,
  'router.unknown_type': 1,
  'router.newer_version': 1,
  'bus.subscriber_failed': 1,
  'inbox.fenced': 1,
  'inbox.duplicate': 1,
  'worker.started': 1,
  'worker.stopped': 1,
  'worker.waiting': 1,
  'worker.failed': 1,
  'worker.restarting': 1,
  'task.failed': 1,
  'task.ran': 1,
  'cleaner.cleaned': 1,
  'relay.reader': 1,
  'relay.waiting': 1,
  'leases.expired': 1,
  'relay.leads': 1,
  'outbox.enqueued': 1,
  'outbox.repaired': 1,
  'due.decided': 1,
  'saga.started': 1,
  'saga.step': 1,
  'saga.reply': 1,
  'saga.ended': 1,
  'saga.held': 1,
  'saga.taken_over': 1,
  'saga.fenced': 1,
  'saga.step_paused': 1,
  'saga.step_resumed': 1,
  'saga.overdue': 1,
  'projection.owned': 1,
  'projection.applied': 1,
  'projection.parked': 1,
  'projection.unparked': 1,
  'projection.fenced': 1,
  'projection.held': 1,
  warning: 1,
} satisfies Record<TelemetryName, 1>

export const TELEMETRY_NAMES = Object.keys(names) as TelemetryName[]

/** A channel for each event, by its name: `telemetry['flow.paused'].subscribe(…)`. Publishing to one without subscribers costs nothing. */
export const telemetry = Object.fromEntries(TELEMETRY_NAMES.map((name) => [name, open(name)])) as {
  readonly [Name in TelemetryName]: TelemetryChannel<Name>
}

/** Warns once per process and place: a warning that repeats is not read. */
export function warnOnce(where: string, message: string): void {
  const key = `${where}\0${message}`
  if (warned.has(key)) return
  warned.add(key)
  telemetry.warning.publish({ where, message })
}

const warned = new Set<string>()
