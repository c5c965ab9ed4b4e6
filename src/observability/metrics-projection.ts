import type { Metric } from './metric.ts'

/** Projections. */
export const PROJECTION_METRICS: readonly Metric[] = [
  {
    kind: 'counter',
    name: 'waybill_projection_events_total',
    help: 'Events a projection has handlers for, by what became of them (applied, parked, unparked).',
    labels: ['projection', 'result'],
    from: {
      'projection.applied': ({ projection, count, parked }, write) => {
        write({ projection, result: 'applied' }, count - parked)
        write({ projection, result: 'parked' }, parked)
      },
      'projection.unparked': ({ projection }, write) => write({ projection, result: 'unparked' }, 1),
    },
  },
  {
    kind: 'gauge',
    name: 'waybill_projection_position',
    help: 'Up to which number of the log a projection has been applied.',
    labels: ['projection'],
    from: { 'projection.applied': ({ projection, position }, write) => write({ projection }, Number(position)) },
  },
  {
    kind: 'counter',
    name: 'waybill_projection_failed_total',
    help: 'Events that could not be applied and were parked, without those that wait behind them.',
    labels: ['projection', 'type'],
    from: { 'projection.parked': ({ projection, type }, write) => write({ projection, type }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_projection_owned_total',
    help: 'How often a projector became the owner of a projection.',
    labels: ['projection'],
    from: { 'projection.owned': ({ projection }, write) => write({ projection }, 1) },
  },
  {
    kind: 'counter',
    name: 'waybill_projection_fenced_total',
    help: 'Writes of projectors that changed nothing, because another had the projection.',
    labels: ['projection'],
    from: { 'projection.fenced': ({ projection }, write) => write({ projection }, 1) },
  },
]
