export type {
  Action,
  Audit,
  AuditEntry,
  Count,
  OutboxAdmin,
  OutboxEntry,
  OutboxFilter,
  OutboxStats,
  Page,
  PendingFilter,
  Preview,
  State,
} from './admin.ts'
export { ACTIONS, STATES } from './admin.ts'
export type { Branch, BranchingOutbox } from './branches.ts'
export { type Cleanable, type Cleaned, Cleaner, type CleanerOptions } from './cleaner.ts'
export * from './entity.ts'
export type { Leadership, Term } from './leadership.ts'
export { inbox, outbox, transaction, transactional } from './middleware.ts'
export { Relay, type RelayOptions } from './relay.ts'
export type { RouteTable } from './routes.ts'
export { type Destination, RoutingRelay, type RoutingRelayOptions, type RoutingTally } from './routing-relay.ts'
export { type OutboxSourceOptions, outboxSource } from './source.ts'
export type { EnqueueOptions, OutboxReader, OutboxStore, Reader, ReaderKind, ReaderOptions } from './store.ts'
export { AmbientUnitOfWork, type Begin, type UnitOfWork } from './unit-of-work.ts'
