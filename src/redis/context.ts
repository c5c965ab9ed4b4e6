import { describe, WaybillError } from '../core/index.ts'
import { has } from '../drivers/has.ts'
import { isIoRedis } from '../drivers/redis/ioredis.ts'
import { isNodeRedis } from '../drivers/redis/node-redis.ts'
import { redisOf } from '../drivers/redis/recognise.ts'
import type { RedisArg } from '../drivers/redis/redis.ts'
import { mayBeSame } from '../drivers/redis/server.ts'
import { ambient } from '../store/unit-of-work.ts'
import { keyPlaces, WRITE_COMMANDS, writeOf } from './commands.ts'
import { type RedisWord, type RedisWrites, transactionOf, Unit, wordOf } from './unit.ts'

/** What an adapter writes with: queued in a unit of work (nothing to await), or sent at once. It returns nothing. */
export type RedisWriter = RedisWrites<void | Promise<void>>

/**
 * For adapters: the commands of the unit of work we are in, if it is written to the server of `fallback`; or else of
 * `fallback` itself, a client of ioredis or node-redis. So a handler calls `orders.save(order)` and knows neither of Redis
 * nor of transactions. `await` it in either case.
 */
export function redisFromContext(fallback: object): RedisWriter {
  const known = fallbacks.get(fallback) ?? remembered(fallback)
  const unit = ambient((tx) => tx instanceof Unit && mayBeSame(tx.server, known.server)) as Unit | undefined
  if (!unit?.open) return known.writer
  if (unit.keyPrefix === known.keyPrefix) return transactionOf(unit)
  throw new WaybillError(
    'INVALID_OPTION',
    `redisFromContext: this client puts ${describe(known.keyPrefix)} before keys, and that of the unit of work ` +
      `${describe(unit.keyPrefix)}; give both the same keyPrefix, or they write different keys`,
  )
}

interface Fallback {
  readonly writer: RedisWriter
  readonly server: string | undefined
  readonly keyPrefix: string
}

const fallbacks = new WeakMap<object, Fallback>()

function remembered(client: object): Fallback {
  const send = senderOf(client)
  const { server, keyPrefix } = redisOf(client)
  const fallback = { writer: writerOf(send), server, keyPrefix }
  fallbacks.set(client, fallback)
  return fallback
}

type SendCommand = (name: string, words: RedisArg[]) => Promise<unknown>

function writerOf(send: SendCommand): RedisWriter {
  const methods = WRITE_COMMANDS.map((name) => [
    name,
    async (...words: RedisWord[]): Promise<void> => {
      await send(
        name,
        words.map((word, at) => wordOf(word, name.toUpperCase(), at)),
      )
    },
  ])
  return Object.fromEntries(methods) as RedisWriter
}

/** How to send a command through a client as it is, with its own settings. */
function senderOf(client: object): SendCommand {
  if (isIoRedis(client)) return async (name, words) => client.callBuffer(name, words)
  if (isNodeRedis(client)) {
    const { sendCommand } = client as { sendCommand: (...args: unknown[]) => Promise<unknown> }
    const { keyPrefix } = redisOf(client)
    const cluster = has(client, 'nodeClient')
    const sentinel = has(client, 'getMasterNode')
    return (name, words) => {
      // It puts its prefix before the keys of its own methods only.
      for (const at of keyPlaces(writeOf(name), words)) words[at] = keyPrefix + words[at]
      const where = cluster ? [words[0], false] : sentinel ? [false] : []
      return sendCommand.call(client, ...where, [name, ...words])
    }
  }
  throw new WaybillError(
    'INVALID_OPTION',
    `redisFromContext: ${describe(client)} is no client; give one of ioredis or node-redis for when there is no unit of work`,
  )
}
