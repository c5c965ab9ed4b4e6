/** `waybill/memory`: transactions, outbox and inbox for tests. Nothing survives the process. */
export { MemoryInbox } from './inbox.ts'
export { MemoryLeadership } from './leadership.ts'
export { Memory, type MemoryOptions, memory } from './memory.ts'
export { type MemoryEnqueueOptions, MemoryOutbox, type MemoryOutboxOptions } from './memory-outbox.ts'
export type { MemoryTransaction } from './transaction.ts'
