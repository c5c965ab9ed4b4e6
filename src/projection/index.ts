/** `waybill/projection`: read tables that follow events, what is parked, and reading one's own writes. */

export { ProjectionAdmin, type ProjectionAdminOptions, type ProjectionReport } from './admin.ts'
export { BrokerProjector, type BrokerProjectorOptions } from './broker.ts'
export {
  type Amounts,
  add,
  type Change,
  type Changes,
  type Columns,
  type ColumnValue,
  patch,
  patchWhere,
  put,
  type RowKey,
  remove,
  type WriteContext,
  write,
} from './changes.ts'
export {
  type Begins,
  type EnrichContext,
  type EnrichOptions,
  type Missing,
  Projection,
  type ProjectionHandler,
  type ProjectionOptions,
  projection,
} from './definition.ts'
export type { ProjectionLag } from './lag.ts'
export type {
  Checkpoint,
  CheckpointStore,
  HeldBy,
  Log,
  LogEvent,
  LogHead,
  LogListener,
  LogPage,
  LogToken,
  ParkedEvent,
  Position,
  ProjectionId,
} from './port.ts'
export { Projector, type ProjectorOptions } from './projector.ts'
export {
  type FlagRedis,
  RecentlyWritten,
  type RecentlyWrittenOptions,
  recentlyWritten,
} from './recently-written.ts'
export type { ProjectionStatus } from './run.ts'
export type {
  DueEvent,
  KeyPosition,
  NewParked,
  OpenView,
  ParkedFilter,
  ParkedPage,
  ProjectionAudit,
  ProjectionCheckpoint,
  ProjectionDatabase,
  ProjectionLook,
  ProjectionStore,
  ViewTable,
} from './store.ts'
export { TOKEN_HEADER, tokenCookie, tokenFrom, tokenOf, tokenText } from './token.ts'
export { View, viewOf, type WaitForOptions } from './wait-for.ts'
export type { WaitAnswer } from './waiters.ts'
