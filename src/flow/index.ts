export { Flow } from './flow.ts'
export type {
  BatchStep,
  EachStep,
  FlowOptions,
  FlowSettings,
  HandleMany,
  HandleOne,
  Step,
  Tally,
} from './flow-options.ts'
export { Lease, safeUntil } from './lease.ts'
export {
  type FinitePipe,
  fromIterable,
  type Generate,
  type GivenUp,
  generate,
  type Pipe,
  type Sink,
  sink,
} from './pipes.ts'
export {
  checkedOutcome,
  checkOutcomes,
  OK,
  type Outcome,
  outcomeOf,
  type Publisher,
  type PublisherFeatures,
  type PublisherLike,
  type PublishFunction,
  publisherOf,
} from './publisher.ts'
export { checkRetry, crashReason, mergedRetry, RETRY_DEFAULTS, type RetryOptions } from './retry-policy.ts'
export { type RunOptions, run, shutdownSignal } from './run.ts'
export {
  type Delivery,
  type Demand,
  DONE,
  decodedMessage,
  RELEASE,
  type Session,
  type Settled,
  type Settlement,
  type Source,
  type SourceDefaults,
  type SourceFeatures,
  setTopic,
  takeFrom,
  topicOf,
  topicOfDelivery,
  type Waits,
} from './source.ts'
export type { Status, WorkerState } from './status.ts'
export { type OnFailure, Parent, Supervisor, type SupervisorOptions } from './supervisor.ts'
export { Task, type TaskOptions } from './task.ts'
export { Window } from './window.ts'
export { PHASES, type Phase, type Stoppable, Worker } from './worker.ts'
