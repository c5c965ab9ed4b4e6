import { BUCKETS, type Metric } from './metric.ts'

const SETTLEMENTS = ['done', 'retry', 'dead', 'release'] as const

/** Names of flows that were paused at any time: as many as there are flows, at most. */
const havePaused = new Set<string>()

/** Of flows, consumers, routers and inboxes. */
export const FLOW_METRICS: readonly Metric[] = [
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
    name: 'waybill_flow_pauses_total',
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
      'flow.paused'({ flow }, write) {
        havePaused.add(flow)
        write({ flow }, 1)
      },
      'flow.resumed': ({ flow }, write) => write({ flow }, 0),
      // A new session begins without a pause, and so does the next one after a loss.
      'flow.opened': ({ flow }, write) => write({ flow }, 0),
      'flow.lost': ({ flow }, write) => write({ flow }, 0),
      // One that is stopped in its pause, such as a shard that another relay has now. Workers that are no flows are left out.
      'worker.stopped'({ worker }, write) {
        if (havePaused.has(worker)) write({ flow: worker }, 0)
      },
    },
  },
  {
    kind: 'counter',
    name: 'waybill_messages_handled_total',
    help: 'Messages handled by consumers, by result (done, retry, dead, release).',
    labels: ['flow', 'type', 'result', 'tenant'],
    from: {
      'messages.handled'({ flow, type, result, tenant = '', count, table }, write) {
        if (table === undefined) write({ flow, type, result, tenant }, count)
      },
    },
  },
  {
    kind: 'histogram',
    name: 'waybill_message_seconds',
    help: 'How long handling one message took, by result.',
    labels: ['flow', 'type', 'result'],
    buckets: BUCKETS,
    from: {
      'messages.handled'({ flow, type, result, took, count, table }, write) {
        if (table === undefined) write({ flow, type, result }, took / 1000, count)
      },
    },
  },
  {
    kind: 'counter',
    name: 'waybill_messages_dead_total',
    help: 'Messages of consumers put aside for a person.',
    labels: ['flow', 'type', 'tenant'],
    from: {
      'message.dead'({ flow, type, tenant = '', table }, write) {
        if (table === undefined) write({ flow, type, tenant }, 1)
      },
    },
  },
  {
    kind: 'counter',
    name: 'waybill_messages_retried_total',
    help: 'Messages of consumers that failed and are tried again; an attempt is spent.',
    labels: ['flow', 'type'],
    from: {
      'message.retrying'({ flow, type, table }, write) {
        if (table === undefined) write({ flow, type }, 1)
      },
    },
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
    kind: 'counter',
    name: 'waybill_inbox_duplicates_total',
    help: 'Messages that a subscriber had handled before: the handler was skipped.',
    labels: ['subscriber', 'type'],
    from: { 'inbox.duplicate': ({ subscriber, type }, write) => write({ subscriber, type }, 1) },
  },
]
