import { redisOf } from '../../src/drivers/redis/recognise.ts'
import type { RedisClient } from '../../src/drivers/redis/redis.ts'

/** A client that tells what is sent through it: commands word by word, scripts by their name, keys and arguments. */
export function listening(client: object): { client: RedisClient; said: string[][] } {
  const real = redisOf(client)
  const said: string[][] = []
  return {
    said,
    client: {
      ...real,
      async connect(options) {
        const connection = await real.connect(options)
        return {
          get lost() {
            return connection.lost
          },
          command(args, more) {
            said.push(args.map(String))
            return connection.command(args, more)
          },
          script(script, keys, args) {
            said.push([script.name, ...args.map(String)])
            return connection.script(script, keys, args)
          },
          pipeline(commands, more) {
            for (const args of commands) said.push(args.map(String))
            return connection.pipeline(commands, more)
          },
          close: () => connection.close(),
        }
      },
    },
  }
}
