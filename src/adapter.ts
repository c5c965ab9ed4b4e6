/** For those who write a source, a publisher or a store: the ports, and the pieces that every adapter of ours uses. */

// Tools that adapters share
export type {
  Backoff,
  ErrorKind,
  Local,
  OptionNames,
  Random,
  SchemaInput,
  SchemaOutput,
  StandardSchema,
} from './core/index.ts'
export {
  asError,
  backoff,
  checkOptions,
  classify,
  errorSummary,
  eventUuid,
  local,
  milliseconds,
  oneOf,
  systemClock,
  systemRandom,
  uuidv7,
  Wakeup,
  wholeNumber,
} from './core/index.ts'
// Flows, and their two ends
export type {
  BatchStep,
  Delivery,
  Demand,
  EachStep,
  FlowOptions,
  FlowSettings,
  HandleMany,
  HandleOne,
  Outcome,
  PublisherFeatures,
  PublisherLike,
  PublishFunction,
  Session,
  Settled,
  Settlement,
  SourceDefaults,
  SourceFeatures,
  Step,
  Tally,
  Waits,
} from './flow/index.ts'
export {
  checkOutcomes,
  DONE,
  Flow,
  Lease,
  OK,
  outcomeOf,
  publisherOf,
  RELEASE,
  setTopic,
  takeFrom,
  topicOf,
} from './flow/index.ts'

// What relays ask of an outbox
export type {
  Branch,
  BranchingOutbox,
  Cleanable,
  Holder,
  Leadership,
  Member,
  OutboxReader,
  Reader,
  ReaderKind,
  ReaderOptions,
  Term,
} from './outbox/index.ts'

export { Assignment, type AssignmentSettings, Quarantine } from './outbox/index.ts'

// What a store owes
export {
  AmbientUnitOfWork,
  type BarrierAnswer,
  type BarrierFunction,
  type BarrierOperation,
  type Barriers,
  type Begin,
  type CheckedEvent,
  type CleanOptions,
  checkEnqueueOptions,
  checkedEvent,
  checkInboxKey,
  type InboxAnswer,
  type InboxKey,
  type Migrated,
  publishEnqueued,
  type Transactional,
  throughBarrier,
} from './store/index.ts'
