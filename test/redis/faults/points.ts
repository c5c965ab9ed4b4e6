import { redisOf } from '../../../src/drivers/redis/recognise.ts'
import type { RedisClient, RedisConnection } from '../../../src/drivers/redis/redis.ts'
import { crashPoint, crashPoints } from '../../../src/testing/index.ts'

/** Where a service can be killed: around each script it runs, and between the steps of its handler. */
export const POINTS = crashPoints([
  'before receive',
  'after receive',
  'handler begins',
  'handler has queued',
  'before commit',
  'after commit',
  'before release',
  'after release',
  'before renew',
  'after renew',
  'before settle',
  'after settle',
  'before claim',
  'after claim',
  'forwarder.before-publish',
  'forwarder.after-publish',
  'forwarder: before settle',
  'forwarder: after settle',
])

/** A client whose scripts have a point before and one after them. */
export function crashing(client: object, prefix = ''): RedisClient {
  const real = redisOf(client)
  const points = (name: string) => (POINTS as readonly string[]).includes(`${prefix}before ${name}`)
  const wrap = (connection: RedisConnection): RedisConnection => ({
    get lost() {
      return connection.lost
    },
    command: (args, options) => connection.command(args, options),
    pipeline: (commands, options) => connection.pipeline(commands, options),
    close: () => connection.close(),
    async script(script, keys, args) {
      if (points(script.name)) crashPoint(`${prefix}before ${script.name}`)
      const reply = await connection.script(script, keys, args)
      if (points(script.name)) crashPoint(`${prefix}after ${script.name}`)
      return reply
    },
  })
  return {
    driver: real.driver,
    cluster: real.cluster,
    keyPrefix: real.keyPrefix,
    connect: async (options) => wrap(await real.connect(options)),
  }
}
