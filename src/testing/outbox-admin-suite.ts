import type { Suite, SuiteOptions } from './conformance.ts'
import { actionCases } from './outbox-admin-action-cases.ts'
import { lookCases } from './outbox-admin-look-cases.ts'
import { OutboxProbe, type OutboxUnderTest } from './outbox-probe.ts'
import { type StoreFactory, storeSuite } from './store-probe.ts'

/** Makes an outbox for the suite of admin actions, fresh for each case. */
export type OutboxAdminFactory<Tx = unknown> = StoreFactory<OutboxUnderTest<Tx>>

/** What every OutboxAdmin must do for the people who look after an outbox. */
export function outboxAdminSuite<Tx>(factory: OutboxAdminFactory<Tx>, options: SuiteOptions = {}): Suite {
  return storeSuite(
    {
      kind: 'outbox admin',
      features: [],
      cases: [...lookCases, ...actionCases],
      probe: (under: OutboxUnderTest<Tx>, time) => new OutboxProbe(under, time),
    },
    factory,
    options,
  )
}
