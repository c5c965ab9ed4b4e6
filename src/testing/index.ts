/** `waybill/testing`: for tests of services and of backends. Imports no test runner and no driver. */
export { type BarriersFactory, type BarriersUnderTest, barrierSuite } from './barrier-suite.ts'
export type { BrokerUnderTest } from './broker-probe.ts'
export { type Chosen, type Collector, type CollectorOptions, collector } from './collect.ts'
export { type Case, type Check, type Suite, type SuiteOptions, suite, within } from './conformance.ts'
export {
  crashPoint,
  crashPoints,
  everyPointHit,
  pauseProcess,
  type RunningScript,
  resumeProcess,
  runScript,
  runUntilCrash,
  type ScriptOptions,
  type ScriptResult,
} from './crash.ts'
export { crashingPublisher, crashingSource, publisherPoints, sourcePoints } from './crash-wrappers.ts'
export { FakeClock } from './fake-clock.ts'
export { type InboxStoreFactory, type InboxUnderTest, inboxStoreSuite } from './inbox-store-suite.ts'
export {
  type LeadershipFactory,
  type LeadershipFeatures,
  type LeadershipUnderTest,
  leadershipSuite,
} from './leadership-suite.ts'
export { type LogFactory, type LogFeatures, type LogUnderTest, logSuite } from './log-suite.ts'
export { type OutboxAdminFactory, outboxAdminSuite } from './outbox-admin-suite.ts'
export type { OutboxUnderTest } from './outbox-probe.ts'
export { type OutboxReaderFactory, type OutboxReaderFeatures, outboxReaderSuite } from './outbox-reader-suite.ts'
export {
  type OutboxStoreFactory,
  type OutboxStoreFeatures,
  type OutboxStoreUnderTest,
  outboxStoreSuite,
} from './outbox-store-suite.ts'
export { type Direction, type FaultProxy, type FaultProxyOptions, faultProxy } from './proxy.ts'
export { type BrokerFactory, type BrokerFeatures, brokerSuite } from './publisher-source-suite.ts'
export { type CrashMatrixOptions, crashMatrix } from './saga-crash-matrix.ts'
export { type GivenSaga, given, type WhenSaga } from './saga-given.ts'
export { type SagaStoreFactory, type SagaStoreUnderTest, sagaStoreSuite } from './saga-store-suite.ts'
export {
  type Scripted,
  type ScriptedOptions,
  type ScriptedSource,
  type SettledRecord,
  scriptedSource,
} from './scripted-source.ts'
export { type SeededRandom, seededRandom } from './seeded-random.ts'
export type { StoreFactory, StoreUnderTest } from './store-probe.ts'
export { type Recorded, recordTelemetry, type TelemetryRecorder } from './telemetry-recorder.ts'
export { type UnitOfWorkFactory, type UnitOfWorkUnderTest, unitOfWorkSuite } from './unit-of-work-suite.ts'
