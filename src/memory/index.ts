/** `waybill/memory`: transactions, outbox and inbox for tests. Nothing survives the process. */
export { MemoryBarriers } from './barriers.ts'
export { MemoryInbox } from './inbox.ts'
export { MemoryLeadership } from './leadership.ts'
export { type MemoryEnqueueOptions, MemoryOutbox, type MemoryOutboxOptions } from './outbox.ts'
export { MemorySagas } from './sagas.ts'
export { Memory, type MemoryOptions, memory } from './store.ts'
export type { MemoryTransaction } from './transaction.ts'
