import type { Suite, SuiteOptions } from './conformance.ts'
import { leaseCases } from './outbox-lease-cases.ts'
import { modeCases } from './outbox-mode-cases.ts'
import { orderCases } from './outbox-order-cases.ts'
import { ownerCases } from './outbox-owner-cases.ts'
import { OutboxProbe, type OutboxUnderTest } from './outbox-probe.ts'
import { readerCases } from './outbox-reader-cases.ts'
import { type StoreFactory, storeSuite } from './store-probe.ts'

/** In which ways an outbox can be read. */
export interface OutboxReaderFeatures {
  /** By one relay at a time, in order per key. */
  readonly owner?: boolean
  /** By relays that compete. */
  readonly lease?: boolean
  /** By owners that share it by key. */
  readonly shards?: boolean
  /** Events of one key are given one at a time, in order. An owner does that; relays that compete may too. */
  readonly order?: boolean
  /** A session can wait, and is woken by a commit. */
  readonly wakes?: boolean
  /** What was alone in flight when a relay died is charged by the next. */
  readonly probes?: boolean
}

/** Makes an outbox for the suite of readers, fresh for each case. */
export type OutboxReaderFactory<Tx = unknown> = StoreFactory<OutboxUnderTest<Tx>, OutboxReaderFeatures>

/** What every outbox must do with those who read it: the sources that `reader(options).assignment()` gives. */
export function outboxReaderSuite<Tx>(factory: OutboxReaderFactory<Tx>, options: SuiteOptions = {}): Suite {
  const { owner = false } = factory.features ?? {}
  return storeSuite(
    {
      kind: 'outbox reader',
      features: ['owner', 'lease', 'shards', 'order', 'wakes', 'probes'] satisfies (keyof OutboxReaderFeatures)[],
      cases: [
        ...readerCases('owner'),
        ...readerCases('lease'),
        ...orderCases,
        ...ownerCases,
        ...leaseCases,
        ...modeCases,
      ],
      probe: (under: OutboxUnderTest<Tx>, time) => new OutboxProbe(under, time),
    },
    { ...factory, features: { order: owner, ...factory.features } },
    options,
  )
}
