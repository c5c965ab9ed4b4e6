/** `waybill/redis`: units of work, an inbox without a gap, and outboxes on Redis. */
export type { RedisClient, RedisConnection } from '../drivers/redis.ts'
export type { RedisLike } from '../drivers/redis-recognise.ts'
export type { WriteCommand } from './commands.ts'
export { type RedisWriter, redisFromContext } from './context.ts'
export { type DueOptions, type DueOutcome, dueEventId, type Intent, RedisDue, redisDue } from './due.ts'
export { type Decided, DueWorker, type DueWorkerOptions } from './due-worker.ts'
export { RedisInbox, type RedisInboxOptions } from './inbox.ts'
export {
  type OutboxEncode,
  RedisStreamOutbox,
  type StreamEnqueueOptions,
  type StreamOutboxOptions,
} from './outbox.ts'
export { RedisOutboxAdmin } from './outbox-admin.ts'
export { OutboxRepair, type Repaired, type RepairOptions } from './outbox-repair.ts'
export { RedisOutbox, type RedisOutboxOptions, redisOutbox } from './outbox-store.ts'
export { type Redis, type RedisOptions, redis } from './redis.ts'
export type { RedisTx, RedisWord, RedisWrites } from './unit.ts'
export { RedisUnitOfWork } from './unit-of-work.ts'
