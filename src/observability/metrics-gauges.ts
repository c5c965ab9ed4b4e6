import type { Metric } from './metric.ts'

type Asked = Pick<Metric, 'name' | 'help' | 'labels'> & Required<Pick<Metric, 'asks'>>

/** What is asked when somebody scrapes. Numbers of tables, sagas and projections come from the process that leads each. */
const ASKED: readonly Asked[] = [
  {
    name: 'outbox_oldest_pending_seconds',
    help: 'For how long the oldest event that could go out has waited: since it was created, or its time came. 0 when there is none.',
    labels: ['table'],
    asks: 'outbox.oldest',
  },
  {
    name: 'outbox_pending_count',
    help: 'Events that are neither published nor dead, scheduled ones included.',
    labels: ['table'],
    asks: 'outbox.pending',
  },
  {
    name: 'outbox_dead_count',
    help: 'Events that wait for a person.',
    labels: ['table'],
    asks: 'outbox.dead',
  },
  {
    name: 'outbox_scheduled_count',
    help: 'Events with a time that has not come, or that no relay has looked at since it came.',
    labels: ['table'],
    asks: 'outbox.scheduled',
  },
  {
    name: 'outbox_blocked_keys',
    help: 'Keys with events that wait for an earlier one.',
    labels: ['table'],
    asks: 'outbox.blocked_keys',
  },
  {
    name: 'outbox_locked_count',
    help: 'Events that a relay has taken: leased rows; under an owner what it has not settled, as the owner reports it.',
    labels: ['table'],
    asks: 'outbox.locked',
  },
  {
    name: 'outbox_count_estimated',
    help: '1 where a number of the table is an estimate, by which (pending, dead, scheduled, blocked_keys, locked).',
    labels: ['table', 'state'],
    asks: 'outbox.estimated',
  },
  {
    name: 'outbox_paused',
    help: '1 while a relay of this process waits for its destination, or is switched off.',
    labels: ['table'],
    asks: 'outbox.paused',
  },
  {
    name: 'outbox_leader',
    help: '1 in the process that reports for the table, 0 in the others.',
    labels: ['table'],
    asks: 'table.leads',
  },
  {
    name: 'waybill_gauges_up',
    help: '1 when the gauges of a table, of the sagas of a store or of a projection could be read in this scrape, 0 when not: they are absent then.',
    labels: ['table', 'saga', 'projection'],
    asks: 'up',
  },
  {
    name: 'waybill_saga_alive_count',
    help: 'Sagas that have not ended, by state (running, compensating, held). Label saga is their table.',
    labels: ['saga', 'type', 'state'],
    asks: 'saga.alive',
  },
  {
    name: 'waybill_saga_attention_count',
    help: 'Sagas that wait for a person: held, or failed and not ended by one.',
    labels: ['saga', 'type'],
    asks: 'saga.attention',
  },
  {
    name: 'waybill_saga_oldest_due_seconds',
    help: 'For how long the saga that is due the longest has not been driven. 0 when none is due.',
    labels: ['saga', 'type'],
    asks: 'saga.oldest_due',
  },
  {
    name: 'waybill_saga_oldest_attention_seconds',
    help: 'For how long the first saga has waited for a person. 0 when none does.',
    labels: ['saga', 'type'],
    asks: 'saga.oldest_attention',
  },
  {
    name: 'waybill_saga_count_estimated',
    help: '1 where a number of sagas is an estimate, by state (running, compensating, held, failed).',
    labels: ['saga', 'type', 'state'],
    asks: 'saga.estimated',
  },
  {
    name: 'waybill_projection_lag_events',
    help: 'How many numbers of the log lie behind a projection: as many events, where no transaction was rolled back.',
    labels: ['projection'],
    asks: 'projection.lag',
  },
  {
    name: 'waybill_projection_lag_seconds',
    help: 'For how long the first event that a projection has not applied has been in the log. 0 when it has all.',
    labels: ['projection'],
    asks: 'projection.lag_seconds',
  },
  {
    name: 'waybill_projection_parked_count',
    help: 'Events that a projection has put aside, those that wait behind them included.',
    labels: ['projection'],
    asks: 'projection.parked',
  },
  {
    name: 'waybill_projection_held_seconds',
    help: 'For how long an open transaction has kept the log back. 0 when none does. The log line projection.held says which.',
    labels: ['projection'],
    asks: 'projection.held',
  },
  {
    name: 'waybill_projection_owner',
    help: '1 in the process that runs the projection, 0 in the others.',
    labels: ['projection'],
    asks: 'projection.leads',
  },
  {
    name: 'waybill_worker_last_success_timestamp_seconds',
    help: 'When a worker last moved something or ended a round, in seconds since 1970.',
    labels: ['worker'],
    asks: 'worker.last_success',
  },
  {
    name: 'waybill_worker_unsettled',
    help: 'Messages that a worker has taken and not settled.',
    labels: ['worker'],
    asks: 'worker.unsettled',
  },
]

export const GAUGE_METRICS: readonly Metric[] = ASKED.map((asked) => ({ kind: 'gauge', from: {}, ...asked }))
