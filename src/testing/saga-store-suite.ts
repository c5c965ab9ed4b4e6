import type { Suite, SuiteOptions } from './conformance.ts'
import { CLAIM_CASES } from './saga-claim-cases.ts'
import { SagaProbe, type SagaStoreFactory, type SagaStoreUnderTest } from './saga-probe.ts'
import { ROW_CASES } from './saga-row-cases.ts'
import { storeSuite, type Time } from './store-probe.ts'

export type { SagaStoreFactory, SagaStoreUnderTest } from './saga-probe.ts'

/** What every SagaStore must do, so that a saga is driven by one runner at a time and none is forgotten. */
export function sagaStoreSuite<Tx>(factory: SagaStoreFactory<Tx>, options: SuiteOptions = {}): Suite {
  const probe = (under: SagaStoreUnderTest<Tx>, time: Time) => new SagaProbe(under as SagaStoreUnderTest, time)
  return storeSuite(
    { kind: 'saga store', features: [], cases: [...ROW_CASES, ...CLAIM_CASES], probe },
    factory,
    options,
  )
}
