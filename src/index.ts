/**
 * What most services need. Stores, brokers and the rest have subpaths of their own: `waybill/postgres`,
 * `waybill/rabbitmq`, …; whoever writes a store or a broker finds the ports in `waybill/adapter`.
 */

// Events and messages
// Running it all
export type {
  BackoffOptions,
  Classify,
  Clock,
  EventData,
  EventDefinition,
  EventKey,
  MessageOptions,
  TelemetryEvents,
} from './core/index.ts'
export {
  type Duration,
  event,
  Message,
  type RawMessage,
  Reject,
  RetryLater,
  telemetry,
  Unavailable,
  WaybillError,
} from './core/index.ts'
export type { Publisher, RetryOptions, Source, Status, Stoppable } from './flow/index.ts'
export { run, Supervisor, shutdownSignal, Task, Worker } from './flow/index.ts'

// Sending it on
export type {
  Audit,
  MissingPart,
  OutboxAdmin,
  OutboxEntries,
  OutboxEntry,
  OutboxFilter,
  OutboxState,
  OutboxStats,
  RelayOptions,
  RoutingRelayOptions,
} from './outbox/index.ts'
export { Cleaner, outboxSource, Relay, RoutingRelay } from './outbox/index.ts'
// Handling them
export type { ConsumeOptions, Context, Handle, Middleware, Outputs, RouterOptions } from './router/index.ts'
export { Consumer, correlation, deadLetter, Engine, Router, repeat, timeout } from './router/index.ts'
// What a transaction leaves for others, and what it has handled
export type { EnqueueOptions, Inbox, Outbox, Store, UnitOfWork } from './store/index.ts'
export { EventCollector, inbox, outbox, saveEvents, transaction, transactional } from './store/index.ts'
