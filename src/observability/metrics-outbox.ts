import { BUCKETS, type Metric } from './metric.ts'

function resultOf(result: 'done' | 'retry' | 'dead'): string {
  return result === 'done' ? 'success' : 'failure'
}

/** Of outboxes, whatever the store: `table` is the name of the outbox, and a branch is a table of its own. */
export const OUTBOX_METRICS: readonly Metric[] = [
  {
    kind: 'counter',
    name: 'outbox_enqueue_total',
    help: 'Events accepted by enqueue in this process, duplicates not counted. Whether their transaction commits is not known here (on Redis it has).',
    labels: ['table', 'topic'],
    from: {
      'outbox.enqueued'({ table, topic, count }, write) {
        if (count > 0) write({ table, topic }, count)
      },
    },
  },
  {
    kind: 'counter',
    name: 'outbox_enqueue_duplicates_total',
    help: 'Events given to enqueue in this process that were there already, and changed nothing.',
    labels: ['table', 'topic'],
    from: {
      'outbox.enqueued'({ table, topic, duplicates }, write) {
        if (duplicates > 0) write({ table, topic }, duplicates)
      },
    },
  },
  {
    kind: 'counter',
    name: 'outbox_dispatch_total',
    help: 'Attempts to publish that ended, by result (success, failure). What was given back because of an outage or a stop is not counted.',
    labels: ['table', 'topic', 'result', 'tenant'],
    from: {
      'messages.handled'({ table, topic, result, tenant = '', count }, write) {
        if (table === undefined || result === 'release') return
        write({ table, topic: topic ?? '', result: resultOf(result), tenant }, count)
      },
    },
  },
  {
    kind: 'histogram',
    name: 'outbox_dispatch_latency_seconds',
    help: 'How long the call that published took, by result; each event of a batch has that of its batch.',
    labels: ['table', 'topic', 'result'],
    buckets: BUCKETS,
    from: {
      'messages.handled'({ table, topic, result, took, count }, write) {
        if (table === undefined || result === 'release') return
        write({ table, topic: topic ?? '', result: resultOf(result) }, took / 1000, count)
      },
    },
  },
  {
    kind: 'counter',
    name: 'outbox_dead_total',
    help: 'Events that became dead: at the limit of attempts, rejected, or after crashes and leases that ran out.',
    labels: ['table', 'topic', 'tenant'],
    from: {
      'message.dead'({ table, topic, type, tenant = '' }, write) {
        if (table !== undefined) write({ table, topic: topic ?? type, tenant }, 1)
      },
    },
  },
  {
    kind: 'histogram',
    name: 'outbox_delivery_seconds',
    help: 'From the creation of an event until it was published, on the clock of its store.',
    labels: ['table'],
    buckets: [...BUCKETS, 300, 1800, 7200, 86_400],
    from: {
      'messages.handled'({ table, ages = [] }, write) {
        if (table === undefined) return
        const labels = { table }
        for (const age of ages) write(labels, age / 1000)
      },
    },
  },
  {
    kind: 'counter',
    name: 'outbox_leader_changes_total',
    help: 'Times this process began to own a shard of the table.',
    labels: ['table'],
    from: { 'relay.leads': ({ table }, write) => write({ table }, 1) },
  },
  {
    kind: 'gauge',
    name: 'outbox_relay_shards',
    help: 'In how many shards this relay reads its outbox, by reader (owner, lease).',
    labels: ['table', 'reader'],
    from: { 'relay.reader': ({ table, reader, shards }, write) => write({ table, reader }, shards) },
  },
  {
    kind: 'counter',
    name: 'outbox_relay_waiting_total',
    help: 'Times a relay said that it waits because another may read.',
    labels: ['table'],
    from: { 'relay.waiting': ({ table }, write) => write({ table }, 1) },
  },
  {
    kind: 'counter',
    name: 'outbox_leases_expired_total',
    help: 'Leases that ran out and were taken over.',
    labels: ['table'],
    from: { 'leases.expired': ({ table, count }, write) => write({ table }, count) },
  },
  {
    kind: 'counter',
    name: 'outbox_repaired_total',
    help: 'What did not belong together in an outbox on Redis and was put right, by what (restored, dropped, released, headed).',
    labels: ['table', 'what'],
    from: {
      'outbox.repaired': ({ table, ...counts }, write) => {
        for (const [what, count] of Object.entries(counts)) write({ table, what }, count)
      },
    },
  },
]
