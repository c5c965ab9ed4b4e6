/** `waybill/saga`: sagas, their runner, and what people do with them. */

export { done, notDone, type Resolution, SagaAdmin, type SagaAdminOptions, type SagaView } from './admin.ts'
export { SagaClient, type StartOptions, type WaitOptions } from './client.ts'
export { type AnySaga, Saga, type SagaOptions, saga } from './definition.ts'
export type { Json } from './json.ts'
export { decide, evolve, next } from './machine.ts'
export { SagaError } from './outcome.ts'
export type {
  Claim,
  Claimed,
  CountedState,
  NewSaga,
  SagaAudit,
  SagaChange,
  SagaDatabase,
  SagaEnd,
  SagaFilter,
  SagaListener,
  SagaPage,
  SagaRecord,
  SagaStats,
  SagaStore,
  StepRecord,
} from './port.ts'
export { type SagaRepliesOptions, sagaReplies } from './replies.ts'
export { SagaRunner, type SagaRunnerOptions, type SagaRunnerStatus } from './runner.ts'
export type {
  Action,
  Command,
  Plan,
  SagaEvent,
  SagaState,
  SagaStatus,
  StepPlan,
  StepState,
  StepStatus,
  UnknownPolicy,
} from './state.ts'
export type {
  EndContext,
  Replies,
  RequestContext,
  RequestOptions,
  StepContext,
  StepDefinition,
  StepOptions,
  TransactionStepOptions,
  UndoContext,
} from './step.ts'
