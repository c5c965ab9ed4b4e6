import { expect, test } from 'vitest'
import { METRICS } from '../../src/observability/index.ts'

/** Dashboards and alarms of others know them by these names, kinds and labels. */
const AGREED: Readonly<Record<string, readonly [kind: string, ...labels: string[]]>> = {
  outbox_enqueue_total: ['counter', 'table', 'topic'],
  outbox_dispatch_total: ['counter', 'table', 'topic', 'result'],
  outbox_dead_total: ['counter', 'table', 'topic'],
  outbox_dispatch_latency_seconds: ['histogram', 'table', 'topic', 'result'],
  outbox_pending_count: ['gauge', 'table'],
  outbox_locked_count: ['gauge', 'table'],
}

test('the metrics of an outbox that were agreed upon have their names, kinds and labels, and no others', () => {
  const found = METRICS.filter(({ name }) => Object.hasOwn(AGREED, name))
  // A tenant is a label only where tenants are listed.
  const shapes = found.map(({ name, kind, labels }) => [name, [kind, ...labels.filter((label) => label !== 'tenant')]])
  expect(Object.fromEntries(shapes)).toEqual(AGREED)
})
