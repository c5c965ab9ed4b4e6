/** `waybill/redis`: units of work, an inbox without a gap, and outboxes on Redis. */

export type { RedisLike } from '../drivers/redis/recognise.ts'
export type { RedisClient, RedisConnection } from '../drivers/redis/redis.ts'
export { RedisOutboxAdmin } from './admin.ts'
export type { WriteCommand } from './commands.ts'
export { type RedisWriter, redisFromContext } from './context.ts'
export { type DueOptions, type DueOutcome, dueEventId, type Intent, RedisDue, redisDue } from './due.ts'
export { type Decided, DueWorker, type DueWorkerOptions } from './due-worker.ts'
export { RedisInbox, type RedisInboxOptions } from './inbox.ts'
export {
  type AnyRedisStore,
  RedisOutbox,
  type RedisOutboxOptions,
  type RedisTagStore,
  redisOutbox,
  type StoredOutboxOptions,
} from './outbox.ts'
export { OutboxRepair, type Repaired, type RepairOptions } from './repair.ts'
export { type RedisOptions, type RedisStore, RedisUnitOfWork, redis } from './store.ts'
export {
  type OutboxEncode,
  RedisStreamOutbox,
  type StreamEnqueueOptions,
  type StreamOutboxOptions,
} from './stream-outbox.ts'
export type { RedisTx, RedisWord, RedisWrites } from './unit.ts'
