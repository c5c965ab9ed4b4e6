export {
  type BarrierAnswer,
  type BarrierContext,
  type BarrierFunction,
  type BarrierOperation,
  type Barriers,
  throughBarrier,
} from './barrier.ts'
export { type CheckedEvent, checkEnqueueOptions, checkedEvent, publishEnqueued } from './enqueue.ts'
export * from './entity.ts'
export { type CleanOptions, checkInboxKey, type Inbox, type InboxAnswer, type InboxKey, type Once } from './inbox.ts'
export { inbox, outbox, type Transactional, transaction, transactional } from './middleware.ts'
export type { EnqueueOptions, Migrated, Outbox, Store } from './store.ts'
export { AmbientUnitOfWork, type Begin, type UnitOfWork } from './unit-of-work.ts'
