export { Flow } from './flow.ts'
export type { FlowOptions, FlowSettings } from './flow-options.ts'
export { checkedOutcome, checkOutcomes, outcomeOf, publisherOf } from './outcome.ts'
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
  OK,
  type Outcome,
  type Publisher,
  type PublisherFeatures,
  type PublisherLike,
  type PublishFunction,
} from './publisher.ts'
export type { RetryOptions } from './retry-policy.ts'
export { type RunOptions, run, type Stoppable, shutdownSignal } from './run.ts'
export {
  type Delivery,
  type Demand,
  DONE,
  RELEASE,
  type Session,
  type Settled,
  type Settlement,
  type Source,
  type SourceDefaults,
  type SourceFeatures,
} from './source.ts'
export type { BatchStep, EachStep, HandleMany, HandleOne, Step, Tally } from './step.ts'
export { takeFrom } from './take-from.ts'
export { Task, type TaskOptions } from './task.ts'
export { setTopic, topicOf, topicOfDelivery } from './topic.ts'
export { Waiters } from './waiters.ts'
export { Window } from './window.ts'
export { PHASES, type Phase, Worker } from './worker.ts'
