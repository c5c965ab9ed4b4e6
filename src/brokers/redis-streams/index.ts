/** `waybill/redis-streams`: Redis Streams as a broker. */

export type { RedisLike } from '../../drivers/redis/recognise.ts'
export type { RedisClient, RedisConnection } from '../../drivers/redis/redis.ts'
export {
  type RedisStreamsBroker,
  type RedisStreamsOptions,
  redisStreams,
  type StreamsPublisherOptions,
  type StreamsSourceOptions,
  type TrimmerOptions,
} from './broker.ts'
export type { StreamDeadLetter } from './dead-letters.ts'
export type { StreamDecode, StreamEncode, StreamFields } from './encoding.ts'
export type { StreamDelivery } from './session.ts'
export type { StreamStats, StreamsSource } from './source.ts'
