import { describe, WaybillError } from '../core/index.ts'
import { has } from '../drivers/has.ts'
import { isIoRedis } from '../drivers/redis/ioredis.ts'
import { isNodeRedis } from '../drivers/redis/node-redis.ts'
import type { RedisArg } from '../drivers/redis/redis.ts'
import { ambient } from '../store/unit-of-work.ts'
import { WRITE_COMMANDS } from './commands.ts'
import { type RedisWord, type RedisWrites, transactionOf, Unit, wordOf } from './unit.ts'

/** What an adapter writes with: queued in a unit of work (nothing to await), or sent at once. It answers nothing. */
export type RedisWriter = RedisWrites<void | Promise<void>>

/**
 * For adapters: the commands of the unit of work we are in, or else of `fallback`, a client of ioredis or node-redis. So
 * a handler calls `orders.save(order)` and knows neither of Redis nor of transactions. `await` it in either case.
 */
export function redisFromContext(fallback: object): RedisWriter {
  const unit = ambient((tx) => tx instanceof Unit) as Unit | undefined
  if (unit?.open) return transactionOf(unit)
  const known = writers.get(fallback)
  if (known !== undefined) return known
  const writer = writerOf(senderOf(fallback))
  writers.set(fallback, writer)
  return writer
}

const writers = new WeakMap<object, RedisWriter>()

type Send = (name: string, key: string, words: RedisArg[]) => Promise<unknown>

function writerOf(send: Send): RedisWriter {
  const methods = WRITE_COMMANDS.map((name) => [
    name,
    async (key: string, ...words: RedisWord[]): Promise<void> => {
      await send(
        name,
        key,
        words.map((word, at) => wordOf(word, name.toUpperCase(), at + 1)),
      )
    },
  ])
  return Object.fromEntries(methods) as RedisWriter
}

/** How to send a command through a client as it is, with its own settings. */
function senderOf(client: object): Send {
  if (isIoRedis(client)) return async (name, key, words) => client.callBuffer(name, [key, ...words])
  if (isNodeRedis(client)) {
    const { sendCommand } = client as { sendCommand: (...args: unknown[]) => Promise<unknown> }
    const cluster = has(client, 'nodeClient')
    const sentinel = has(client, 'getMasterNode')
    return (name, key, words) => {
      const where = cluster ? [key, false] : sentinel ? [false] : []
      return sendCommand.call(client, ...where, [name, key, ...words])
    }
  }
  throw new WaybillError(
    'INVALID_OPTION',
    `redisFromContext: ${describe(client)} is no client; give one of ioredis or node-redis for when there is no unit of work`,
  )
}
