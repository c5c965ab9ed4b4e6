import { describe, WaybillError } from '../../core/index.ts'
import { has } from '../has.ts'
import { ioRedis, isIoRedis } from './ioredis.ts'
import { isNodeRedis, nodeRedis } from './node-redis.ts'
import type { RedisClient } from './redis.ts'

/** A client of ioredis (standalone, Sentinel, Cluster) or node-redis (client, Sentinel, cluster), or one of your own making. */
export type RedisLike = RedisClient | object

/** Which driver a client belongs to is seen from its methods: nothing is imported to ask. */
export function redisOf(given: RedisLike): RedisClient {
  if (isIoRedis(given)) return ioRedis(given)
  if (isNodeRedis(given)) return nodeRedis(given)
  if (has(given, 'connect') && 'keyPrefix' in (given as object) && 'cluster' in (given as object)) {
    return given as RedisClient
  }
  throw new WaybillError(
    'INVALID_OPTION',
    `client: ${describe(given)} is no Redis client that is known here; give one of ioredis (Redis, Cluster) or node-redis ` +
      '(createClient, createSentinel, createCluster)',
  )
}
