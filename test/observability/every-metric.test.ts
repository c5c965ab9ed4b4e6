import { expect, test } from 'vitest'
import { type TelemetryEvents, type TelemetryName, telemetry } from '../../src/core/index.ts'
import { METRICS } from '../../src/observability/index.ts'
import { scraped } from './worlds.ts'

const error = new Error('no')
const message = { flow: 'f', type: 't', id: '1', tenant: undefined, topic: 'o', attempt: 1 }
const saga = { type: 's', id: '1', tenant: undefined, traceparent: undefined }

/** Each event that counts something, once, with numbers that tell one from another. */
const EVENTS: { readonly [Name in TelemetryName]?: TelemetryEvents[Name] } = {
  'flow.open_failed': { flow: 'f', error, retryIn: 1 },
  'flow.take_failed': { flow: 'f', error, retryIn: 1 },
  'flow.settle_failed': { flow: 'f', count: 9, error, lost: false },
  'flow.taken': { flow: 'f', count: 7 },
  'flow.settled': { flow: 'f', done: 2, retry: 3, dead: 4, release: 5, stale: 6, took: 1000 },
  'flow.lost': { flow: 'f', unsettled: 1, reason: error },
  'flow.paused': { flow: 'f', error, retryIn: 1, failures: 1 },
  'settlement.refused': { ...message, settlement: 'done', dead: true, error },
  'messages.handled': { ...message, result: 'done', count: 8, took: 500 },
  'message.retrying': { ...message, error, retryIn: 1 },
  'message.dead': { ...message, reason: 'Error: no' },
  'message.suspected': { ...message, error },
  'ack.failed': { type: 't', id: '1', error },
  'router.unknown_type': { router: 'r', type: 't', id: '1', policy: 'nack' },
  'router.newer_version': { router: 'r', type: 't', id: '1', version: 3, newestKnown: 2 },
  'bus.subscriber_failed': { type: 't', id: '1', error },
  'inbox.fenced': { store: 'i', key: 'k' },
  'inbox.duplicate': { subscriber: 'billing', type: 't', id: '1' },
  'worker.started': { worker: 'w' },
  'worker.waiting': { worker: 'w', reason: 'x', waitedFor: 1 },
  'worker.restarting': { worker: 'w', parent: 'p', error, retryIn: 1, failures: 1 },
  'task.failed': { task: 'k', error, retryIn: 1 },
  'task.ran': { task: 'k', took: 2000 },
  'cleaner.cleaned': { store: 'c', count: 11, partitions: 2, took: 1 },
  'relay.reader': { table: 'b', reader: 'owner', shards: 4, why: 'x' },
  'relay.waiting': { table: 'b', shard: 0, holder: 'h', until: 'u', overdue: false, reason: 'x' },
  'relay.leads': { table: 'b', shard: 0, holder: 'h' },
  'leases.expired': { table: 'b', count: 3 },
  'outbox.enqueued': { table: 'b', topic: 'o', count: 5, duplicates: 2 },
  'outbox.repaired': { table: 'b', restored: 1, dropped: 2, released: 3, headed: 4 },
  'due.decided': { due: 'd', enqueued: 1, already: 2, suppressed: 3, other: 4, failed: 5 },
  'saga.started': saga,
  'saga.step': { ...saga, step: 'charge', call: 'run', result: 'succeeded', took: 250, attempt: 1, error: undefined },
  'saga.reply': { ...saga, step: 'charge', reply: 'y', means: 'refused', changed: true },
  'saga.ended': { ...saga, status: 'compensated', took: 1 },
  'saga.held': { ...saga, reason: 'x' },
  'saga.taken_over': { type: 's', id: '1', tenant: undefined, takeovers: 1, steps: [] },
  'saga.fenced': { type: 's', id: '1' },
  'saga.step_paused': { step: 's.charge', error, retryIn: 1 },
  'saga.overdue': { definition: 's@1', count: 6, registered: false, changed: false },
  'projection.applied': { projection: 'v/1', count: 10, parked: 3, position: '77', took: 1 },
  'projection.parked': { projection: 'v/1', type: 't', position: '70', reason: 'x', error: 'x' },
  'projection.unparked': { projection: 'v/1', type: 't', position: '70', attempts: 2 },
  'projection.owned': { projection: 'v/1', epoch: '1', position: '0' },
  'projection.fenced': { projection: 'v/1' },
  warning: { where: 'x', message: 'y' },
}

/** What a scrape has of them then. Those of relays are in `outbox-metrics`, against real stores. */
const EXPECTED = `
outbox_enqueue_total{table="b",topic="o"} 5
outbox_enqueue_duplicates_total{table="b",topic="o"} 2
outbox_leader_changes_total{table="b"} 1
outbox_relay_shards{table="b",reader="owner"} 4
outbox_relay_waiting_total{table="b"} 1
outbox_leases_expired_total{table="b"} 3
outbox_repaired_total{table="b",what="restored"} 1
outbox_repaired_total{table="b",what="dropped"} 2
outbox_repaired_total{table="b",what="released"} 3
outbox_repaired_total{table="b",what="headed"} 4
waybill_flow_taken_total{flow="f"} 7
waybill_flow_settled_total{flow="f",result="done"} 2
waybill_flow_settled_total{flow="f",result="retry"} 3
waybill_flow_settled_total{flow="f",result="dead"} 4
waybill_flow_settled_total{flow="f",result="release"} 5
waybill_flow_stale_total{flow="f"} 6
waybill_flow_settle_seconds_sum{flow="f"} 1
waybill_flow_settle_seconds_count{flow="f"} 1
waybill_flow_failed_total{flow="f",call="open"} 1
waybill_flow_failed_total{flow="f",call="take"} 1
waybill_flow_failed_total{flow="f",call="settle"} 1
waybill_settlements_refused_total{flow="f",type="t",became="dead"} 1
waybill_flow_lost_total{flow="f"} 1
waybill_flow_pauses_total{flow="f"} 1
waybill_flow_paused{flow="f"} 1
waybill_messages_handled_total{flow="f",type="t",result="done"} 8
waybill_message_seconds_sum{flow="f",type="t",result="done"} 4
waybill_message_seconds_count{flow="f",type="t",result="done"} 8
waybill_messages_dead_total{flow="f",type="t"} 1
waybill_messages_retried_total{flow="f",type="t"} 1
waybill_messages_suspected_total{flow="f",type="t"} 1
waybill_acks_failed_total{type="t"} 1
waybill_unknown_type_total{router="r",policy="nack"} 1
waybill_newer_version_total{router="r",type="t"} 1
waybill_bus_failed_total{type="t"} 1
waybill_inbox_fenced_total{store="i"} 1
waybill_inbox_duplicates_total{subscriber="billing",type="t"} 1
waybill_worker_running{worker="w"} 1
waybill_worker_restarts_total{worker="w"} 1
waybill_worker_waits_total{worker="w"} 1
waybill_task_seconds_sum{task="k"} 2
waybill_task_seconds_count{task="k"} 1
waybill_task_failed_total{task="k"} 1
waybill_cleaned_total{store="c",what="rows"} 11
waybill_cleaned_total{store="c",what="partitions"} 2
waybill_due_decided_total{due="d",outcome="enqueued"} 1
waybill_due_decided_total{due="d",outcome="already"} 2
waybill_due_decided_total{due="d",outcome="suppressed"} 3
waybill_due_decided_total{due="d",outcome="other"} 4
waybill_due_decided_total{due="d",outcome="failed"} 5
waybill_warnings_total{where="x"} 1
waybill_saga_started_total{type="s"} 1
waybill_saga_step_seconds_sum{type="s",step="charge",call="run",result="succeeded"} 0.25
waybill_saga_step_seconds_count{type="s",step="charge",call="run",result="succeeded"} 1
waybill_saga_replies_total{type="s",step="charge",means="refused"} 1
waybill_saga_ended_total{type="s",status="compensated"} 1
waybill_saga_held_total{type="s"} 1
waybill_saga_taken_over_total{type="s"} 1
waybill_saga_fenced_total{type="s"} 1
waybill_saga_step_paused{step="s.charge"} 1
waybill_saga_overdue_total{definition="s@1"} 1
waybill_projection_events_total{projection="v/1",result="applied"} 7
waybill_projection_events_total{projection="v/1",result="parked"} 3
waybill_projection_events_total{projection="v/1",result="unparked"} 1
waybill_projection_position{projection="v/1"} 77
waybill_projection_failed_total{projection="v/1",type="t"} 1
waybill_projection_owned_total{projection="v/1"} 1
waybill_projection_fenced_total{projection="v/1"} 1
`

const RELAYS = [
  'outbox_dispatch_total',
  'outbox_dispatch_latency_seconds',
  'outbox_dead_total',
  'outbox_delivery_seconds',
]

test('each event is counted where its metric says, with the value it has', async () => {
  const metrics = scraped()
  for (const [name, event] of Object.entries(EVENTS)) telemetry[name as TelemetryName].publish(event as never)
  const text = await metrics.registry.metrics()
  metrics.stop()
  const samples = text.split('\n').filter((line) => line !== '' && !line.startsWith('#') && !line.includes('_bucket{'))
  const expected = EXPECTED.trim().split('\n')
  expect(samples.sort()).toEqual([...expected].sort())
  // None is forgotten: what is asked for at a scrape has its tests by store.
  const shown = METRICS.filter(({ name }) => expected.some((line) => new RegExp(`^${name}(?:_sum)?\\{`).test(line)))
  const counted = METRICS.filter(({ name, asks }) => asks === undefined && !RELAYS.includes(name))
  expect(shown.map(({ name }) => name)).toEqual(counted.map(({ name }) => name))
})
