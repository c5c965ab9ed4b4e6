import type { Suite, SuiteOptions } from './conformance.ts'
import { OutboxProbe, type OutboxUnderTest } from './outbox-probe.ts'
import { contentCases } from './outbox-store-content-cases.ts'
import { enqueueCases } from './outbox-store-enqueue-cases.ts'
import { type StoreFactory, storeSuite } from './store-probe.ts'

/** What an outbox can do beyond taking events. */
export interface OutboxStoreFeatures {
  /** Each event has a number that grows with every event of a transaction, and `enqueue` returns it at once. */
  readonly receipts?: boolean
  /** There is something that could be mistaken for a transaction and is none: `pool`. */
  readonly refusesPool?: boolean
}

/** An outbox, and what the suite of stores needs beside it. */
export interface OutboxStoreUnderTest<Tx = unknown> extends OutboxUnderTest<Tx> {
  /** What a careless caller gives in place of a transaction, for `refusesPool`. */
  readonly pool?: unknown
}

/** Makes an outbox for the suite of stores, fresh for each case. */
export type OutboxStoreFactory<Tx = unknown> = StoreFactory<OutboxStoreUnderTest<Tx>, OutboxStoreFeatures>

export class OutboxStoreProbe extends OutboxProbe {
  readonly pool: unknown

  constructor(under: OutboxStoreUnderTest, time: ConstructorParameters<typeof OutboxProbe>[1]) {
    super(under, time)
    this.pool = under.pool
  }
}

/** What every Outbox must do with what a transaction leaves in it. */
export function outboxStoreSuite<Tx>(factory: OutboxStoreFactory<Tx>, options: SuiteOptions = {}): Suite {
  return storeSuite(
    {
      kind: 'outbox store',
      features: ['receipts', 'refusesPool'] satisfies (keyof OutboxStoreFeatures)[],
      cases: [...enqueueCases, ...contentCases],
      probe: (under: OutboxStoreUnderTest<Tx>, time) => new OutboxStoreProbe(under, time),
    },
    factory,
    options,
  )
}
