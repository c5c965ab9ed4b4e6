import type { TelemetryEvents, TelemetryName } from '../core/index.ts'

/** `type` and `tenant` come with the messages: the recorder bounds them. */
export type Labels = Record<string, string>

/**
 * How a row writes. For a counter the value is added, for a histogram it is observed (`times` over), for a gauge it is
 * set.
 */
export type Write = (labels: Labels, value: number, times?: number) => void

/** One metric: its name, labels and help, and the events that move it. */
export interface Metric {
  readonly kind: 'counter' | 'histogram' | 'gauge'
  readonly name: string
  readonly help: string
  /** `tenant` is left out unless tenants are asked for. */
  readonly labels: readonly string[]
  readonly buckets?: readonly number[]
  readonly from: { readonly [Name in TelemetryName]?: (event: TelemetryEvents[Name], write: Write) => void }
}

/** Seconds: from what never leaves the process to what waits for somebody else. */
const BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]

const SETTLEMENTS = ['done', 'retry', 'dead', 'release'] as const

/** Every metric, what it means and which event it comes from. A new one is a new row. */
export const METRICS: readonly Metric[] = [
  {
    kind: 'counter',
    name: 'waybill_flow_taken_total',
    help: 'Messages taken from the source.',
    labels: ['flow'],
    from: { 'flow.taken': ({ flow, count }, write) => write({ flow }, count) },
  },
  {
    kind: 'counter',
    name: 'waybill_flow_settled_total',
    help: 'Settlements written to the source, by result (done, retry, dead, release).',
    labels: ['flow', 'result'],
    from: {
      'flow.settled'({ flow, ...counts }, write) {
        for (const result of SETTLEMENTS) if (counts[result] > 0) write({ flow, result }, counts[result])
      },
    },
  },
  {
    kind: 'counter',
    name: 'waybill_flow_stale_total',
    help: 'Settlements that changed nothing, because another had taken over.',
    labels: ['flow'],
    from: {
      'flow.settled'({ flow, stale }, write) {
        if (stale > 0) write({ flow }, stale)
      },
    },
  },
  {
    kind: 'histogram',
    name: 'waybill_flow_settle_seconds',
    help: 'How long it took to write one batch of settlements.',
    labels: ['flow'],
    buckets: BUCKETS,
    from: { 'flow.settled': ({ flow, took }, write) => write({ flow }, took / 1000) },
  },
  {
    kind: 'counter',
    name: 'waybill_flow_failed_total',
    help: 'Calls to the source that failed, by what was tried (open, take, settle).',
    labels: ['flow', 'call'],
    from: {
      'flow.open_failed': ({ flow }, write) => write({ flow, call: 'open' }, 1),
      'flow.take_failed': ({ flow }, write) => write({ flow, call: 'take' }, 1),
      'flow.settle_failed': ({ flow }, write) => write({ flow, call: 'settle' }, 1),
    },
  },
  {
    kind: 'counter',
    name: 'waybill_settlements_refused_total',
    help: 'Messages whose settlement the source refused to write, by what became of them (dead, aside).',
    labels: ['flow', 'type', 'became'],
    from: {
      'settlement.refused': ({ flow, type, dead }, write) => write({ flow, type, became: dead ? 'dead' : 'aside' }, 1),
    },
  },
  {
    kind: 'counter',
    name: 'waybill_flow_lost_total',
    help: 'Sessions lost: leases, channels, leadership.',
    labels: ['flow'],
    from: { 'flow.lost': ({ flow }, write) => write({ flow }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_flow_paused_total',
    help: 'Times what the flow depends on was found to be away, failed probes included.',
    labels: ['flow'],
    from: { 'flow.paused': ({ flow }, write) => write({ flow }, 1) },
  },
  {
    kind: 'gauge',
    name: 'waybill_flow_paused',
    help: '1 while the flow waits for what it depends on.',
    labels: ['flow'],
    from: {
      'flow.paused': ({ flow }, write) => write({ flow }, 1),
      'flow.resumed': ({ flow }, write) => write({ flow }, 0),
      // A new session begins without a pause, and so does the next one after a loss.
      'flow.opened': ({ flow }, write) => write({ flow }, 0),
      'flow.lost': ({ flow }, write) => write({ flow }, 0),
    },
  },
  {
    kind: 'counter',
    name: 'waybill_messages_handled_total',
    help: 'Messages handled, by result (done, retry, dead, release).',
    labels: ['flow', 'type', 'result', 'tenant'],
    from: {
      'messages.handled': ({ flow, type, result, tenant = '', count }, write) =>
        write({ flow, type, result, tenant }, count),
    },
  },
  {
    kind: 'histogram',
    name: 'waybill_message_seconds',
    help: 'How long handling one message took, by result.',
    labels: ['flow', 'type', 'result'],
    buckets: BUCKETS,
    from: {
      'messages.handled': ({ flow, type, result, took, count }, write) =>
        write({ flow, type, result }, took / 1000, count),
    },
  },
  {
    kind: 'counter',
    name: 'waybill_messages_dead_total',
    help: 'Messages put aside for a person.',
    labels: ['flow', 'type', 'tenant'],
    from: { 'message.dead': ({ flow, type, tenant = '' }, write) => write({ flow, type, tenant }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_messages_suspected_total',
    help: 'Messages charged because they failed alone where others did not.',
    labels: ['flow', 'type'],
    from: { 'message.suspected': ({ flow, type }, write) => write({ flow, type }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_acks_failed_total',
    help: 'Per-message acknowledgements that failed.',
    labels: ['type'],
    from: { 'ack.failed': ({ type }, write) => write({ type }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_unknown_type_total',
    help: 'Messages of a type that the router has no handler for, by what was done with them. The log has the types.',
    labels: ['router', 'policy'],
    from: { 'router.unknown_type': ({ router, policy }, write) => write({ router, policy }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_newer_version_total',
    help: 'Messages of a newer version than the router knows.',
    labels: ['router', 'type'],
    from: { 'router.newer_version': ({ router, type }, write) => write({ router, type }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_bus_failed_total',
    help: 'Fire-and-forget subscribers that failed.',
    labels: ['type'],
    from: { 'bus.subscriber_failed': ({ type }, write) => write({ type }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_inbox_fenced_total',
    help: 'Commits that came after their lease on the message, and changed nothing.',
    labels: ['store'],
    from: { 'inbox.fenced': ({ store }, write) => write({ store }, 1) },
  },
  {
    kind: 'gauge',
    name: 'waybill_worker_running',
    help: '1 while the worker runs.',
    labels: ['worker'],
    from: {
      'worker.started': ({ worker }, write) => write({ worker }, 1),
      'worker.stopped': ({ worker }, write) => write({ worker }, 0),
      'worker.failed': ({ worker }, write) => write({ worker }, 0),
    },
  },
  {
    kind: 'counter',
    name: 'waybill_worker_restarts_total',
    help: 'Times a worker had ended with an error, or could not start, and was to be started again.',
    labels: ['worker'],
    from: { 'worker.restarting': ({ worker }, write) => write({ worker }, 1) },
  },
  {
    kind: 'histogram',
    name: 'waybill_task_seconds',
    help: 'How long one round of a task took, when it succeeded.',
    labels: ['task'],
    buckets: BUCKETS,
    from: { 'task.ran': ({ task, took }, write) => write({ task }, took / 1000) },
  },
  {
    kind: 'counter',
    name: 'waybill_task_failed_total',
    help: 'Rounds of a task that failed.',
    labels: ['task'],
    from: { 'task.failed': ({ task }, write) => write({ task }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_cleaned_total',
    help: 'What cleaners removed because it was no longer needed, by what (rows, partitions).',
    labels: ['store', 'what'],
    from: {
      'cleaner.cleaned': ({ store, count, partitions }, write) => {
        write({ store, what: 'rows' }, count)
        write({ store, what: 'partitions' }, partitions)
      },
    },
  },
  {
    kind: 'gauge',
    name: 'waybill_relay_shards',
    help: 'In how many shards this relay reads its outbox, by reader (owner, lease).',
    labels: ['table', 'reader'],
    from: { 'relay.reader': ({ table, reader, shards }, write) => write({ table, reader }, shards) },
  },
  {
    kind: 'counter',
    name: 'waybill_relay_waiting_total',
    help: 'Times a relay said that it waits because another may read.',
    labels: ['table'],
    from: { 'relay.waiting': ({ table }, write) => write({ table }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_leases_expired_total',
    help: 'Leases that ran out and were taken over.',
    labels: ['table'],
    from: { 'leases.expired': ({ table, count }, write) => write({ table }, count) },
  },
  {
    kind: 'counter',
    name: 'waybill_outbox_enqueued_total',
    help: 'Events committed to an outbox on Redis, by result (new, duplicate).',
    labels: ['outbox', 'result'],
    from: {
      'outbox.enqueued': ({ outbox, count, duplicates }, write) => {
        write({ outbox, result: 'new' }, count)
        write({ outbox, result: 'duplicate' }, duplicates)
      },
    },
  },
  {
    kind: 'counter',
    name: 'waybill_outbox_repaired_total',
    help: 'What did not belong together in an outbox on Redis and was put right, by what (restored, dropped, released, headed).',
    labels: ['outbox', 'what'],
    from: {
      'outbox.repaired': ({ outbox, ...counts }, write) => {
        for (const [what, count] of Object.entries(counts)) write({ outbox, what }, count)
      },
    },
  },
  {
    kind: 'counter',
    name: 'waybill_due_decided_total',
    help: 'Intents whose time had come, by outcome (enqueued, already, suppressed, other, failed).',
    labels: ['due', 'outcome'],
    from: {
      'due.decided': ({ due, ...counts }, write) => {
        for (const [outcome, count] of Object.entries(counts)) write({ due, outcome }, count)
      },
    },
  },
  {
    kind: 'histogram',
    name: 'waybill_saga_step_seconds',
    help: 'How long calls of a step took, by call (run, check, undo) and result (succeeded, refused, unknown, undone …).',
    labels: ['type', 'step', 'call', 'result'],
    buckets: BUCKETS,
    from: {
      'saga.step': ({ type, step, call, result, took }, write) => write({ type, step, call, result }, took / 1000),
    },
  },
  {
    kind: 'counter',
    name: 'waybill_saga_ended_total',
    help: 'Sagas that ended, by status (completed, compensated, failed).',
    labels: ['type', 'status'],
    from: { 'saga.ended': ({ type, status }, write) => write({ type, status }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_saga_held_total',
    help: 'Sagas that began to wait for a person.',
    labels: ['type'],
    from: { 'saga.held': ({ type }, write) => write({ type }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_saga_taken_over_total',
    help: 'Sagas taken over from a runner that stopped without a word.',
    labels: ['type'],
    from: { 'saga.taken_over': ({ type }, write) => write({ type }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_saga_fenced_total',
    help: 'Writes of runners that changed nothing, because another had the saga.',
    labels: ['type'],
    from: { 'saga.fenced': ({ type }, write) => write({ type }, 1) },
  },
  {
    kind: 'gauge',
    name: 'waybill_saga_step_paused',
    help: '1 while all sagas fail at this step, and it is waited for.',
    labels: ['step'],
    from: {
      'saga.step_paused': ({ step }, write) => write({ step }, 1),
      'saga.step_resumed': ({ step }, write) => write({ step }, 0),
    },
  },
  {
    kind: 'gauge',
    name: 'waybill_saga_overdue',
    help: 'Sagas that have been due for a minute and that nobody claims, as last counted.',
    labels: ['definition'],
    from: { 'saga.overdue': ({ definition, count }, write) => write({ definition }, count) },
  },
  {
    kind: 'counter',
    name: 'waybill_warnings_total',
    help: 'Things a person should know; the log has the words.',
    labels: ['where'],
    from: { warning: ({ where }, write) => write({ where }, 1) },
  },
]
