import { Unavailable } from '../../core/index.ts'
import {
  isKind,
  numberOf,
  type RedisArg,
  type RedisConnection,
  RedisError,
  type RedisReply,
  type RedisScript,
} from './redis.ts'

export interface ReplicaAcks {
  /** How many replicas must have what was written. */
  readonly replicas: number
  /** How long they may take, in milliseconds. */
  readonly within: number
}

/** On top of the time replicas have: to send it, and to hear. */
const SLACK = 10_000

/**
 * Runs a script, and resolves when so many replicas have what it wrote; otherwise rejects with `Unavailable`. The writes
 * are there all the same, so whoever repeats them must bear two.
 *
 * WAIT is about the writes of its own connection and, asked on another, replies at once that all is well. So both go to
 * one node in one go. Inside a script or MULTI it would not wait at all.
 */
export async function replicatedScript(
  redis: RedisConnection,
  script: RedisScript,
  keys: readonly [string, ...string[]],
  args: readonly RedisArg[],
  { replicas, within }: ReplicaAcks,
): Promise<RedisReply> {
  if (replicas === 0) return await redis.script(script, keys, args)
  const rest = [String(keys.length), ...keys, ...args]
  const run = (head: readonly string[]) =>
    redis.pipeline(
      [
        [...head, ...rest],
        ['wait', String(replicas), String(within)],
      ],
      {
        key: keys[0],
        timeout: within + SLACK,
      },
    )
  let [reply, replicaAcks] = await run(['evalsha', script.sha])
  if (isKind(reply, 'NOSCRIPT')) [reply, replicaAcks] = await run(['eval', script.text])
  if (reply instanceof RedisError) throw reply
  if (replicaAcks instanceof RedisError) {
    // A replica refuses it: since when this server is one, and what it still accepted before, nobody knows.
    await redis.close()
    throw new Unavailable(`the replicas cannot be asked: ${replicaAcks.message}`, { cause: replicaAcks })
  }
  if (numberOf(replicaAcks) >= replicas) return reply!
  throw new Unavailable(`${numberOf(replicaAcks)} of ${replicas} replicas have it after ${within} ms`)
}
