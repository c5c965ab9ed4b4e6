import { Redis as IoRedis } from 'ioredis'
import { createClient } from 'redis'

/** A client that opens no connection by itself: only its settings are wanted. */
export function ioredis(url: string): IoRedis {
  return new IoRedis(url, { lazyConnect: true })
}

export function nodeRedis(url: string): object {
  return createClient({ url })
}
