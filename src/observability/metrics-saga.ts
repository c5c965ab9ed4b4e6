import { BUCKETS, type Metric } from './metric.ts'

/** Of sagas. */
export const SAGA_METRICS: readonly Metric[] = [
  {
    kind: 'counter',
    name: 'waybill_saga_started_total',
    help: 'Sagas started in this process. Whether the transaction of one commits is not known here.',
    labels: ['type'],
    from: { 'saga.started': ({ type }, write) => write({ type }, 1) },
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
    name: 'waybill_saga_replies_total',
    help: 'Messages that answered a step, by what they mean (reply, refused, undone); repeats are not counted.',
    labels: ['type', 'step', 'means'],
    from: {
      'saga.reply'({ type, step, means, changed }, write) {
        if (changed) write({ type, step, means }, 1)
      },
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
    // No gauge: nothing is published when there are none any more, and it would stay as it was.
    kind: 'counter',
    name: 'waybill_saga_overdue_total',
    help: 'Looks, one a minute, that found sagas of this definition due for a minute and claimed by nobody.',
    labels: ['definition'],
    from: { 'saga.overdue': ({ definition }, write) => write({ definition }, 1) },
  },
]
