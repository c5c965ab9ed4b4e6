import { BUCKETS, type Metric } from './metric.ts'

/** Of what runs in the background. */
export const WORKER_METRICS: readonly Metric[] = [
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
    kind: 'counter',
    name: 'waybill_worker_waits_total',
    help: 'Times a worker had waited for some seconds for another, or for something.',
    labels: ['worker'],
    from: { 'worker.waiting': ({ worker }, write) => write({ worker }, 1) },
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
    kind: 'counter',
    name: 'waybill_warnings_total',
    help: 'Things a person should know; the log has the words.',
    labels: ['where'],
    from: { warning: ({ where }, write) => write({ where }, 1) },
  },
]
