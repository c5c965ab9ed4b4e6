export type {
  AdminAction,
  Audit,
  AuditEntries,
  AuditEntry,
  Count,
  MissingPart,
  OutboxAdmin,
  OutboxEntries,
  OutboxEntry,
  OutboxFilter,
  OutboxStats,
  Page,
  PendingFilter,
  Preview,
  State as OutboxState,
} from './admin.ts'
export { ACTIONS, STATES } from './admin.ts'
export { Assignment, type AssignmentSettings } from './assignment.ts'
export type { Branch, BranchingOutbox } from './branches.ts'
export { type Cleanable, type Cleaned, Cleaner, type CleanerOptions } from './cleaner.ts'
export type { Holder, Leadership, Member, Term } from './leadership.ts'
export { Quarantine } from './quarantine.ts'
export type { OutboxReader, Reader, ReaderKind, ReaderOptions } from './reader.ts'
export { Relay } from './relay.ts'
export type { RelayOptions } from './relay-options.ts'
export type { RouteTable } from './routes.ts'
export { type Destination, RoutingRelay, type RoutingRelayOptions, type RoutingTally } from './routing-relay.ts'
export { type OutboxSourceOptions, outboxSource } from './source.ts'
