import { listOf, type RedisReply } from '../drivers/redis/redis.ts'

/**
 * What one call of a script takes along at most, unless a single item is more: Redis does nothing else meanwhile, which
 * is about half a millisecond of short commands.
 */
export const CALL_LIMIT = { count: 64, bytes: 256 * 1024 } as const

/** So many are not parted: a call for fewer would cost more than it saves. */
const BATCH = 8

const ALL_WELL: readonly RedisReply[] = new Array(CALL_LIMIT.count).fill(1)

/** Of a script that returns 1 for each item where all is well with it, and for all of them when it is with all. */
export function repliesOf(reply: RedisReply): readonly RedisReply[] {
  return reply === 1 ? ALL_WELL : listOf(reply)
}

/** The calls on their way to a server, of all who may share it. */
export interface CallsInFlight {
  calls: number
}

/** Some that were asked one after the other, and go in the same call. */
interface CallBatch<Item, Reply> {
  readonly items: Item[]
  bytes: number
  /** Where its items begin in the call. */
  from: number
  /** Those of the call. One promise for all: one for each, with what resolves it, would cost more than the rest does. */
  readonly replies: Promise<readonly Reply[]>
  readonly resolve: (replies: Promise<readonly Reply[]>) => void
}

/**
 * What is asked in one turn of the event loop goes to the server in one call, each with a reply of its own. A call of
 * its own for each would cost both sides more than the work in it. Nothing waits for others to come: what is asked
 * alone goes alone, and calls follow each other without waiting for replies.
 *
 * Callers that get one reply send their next command together, so that client and server would take turns idling. So where
 * many go and nothing is on its way, they go in two calls: the server does the second while this process goes on with the
 * replies of the first.
 *
 * When a call fails, all that were in it fail with its error, as if each had been sent alone at that moment.
 */
export class CallBatcher<Item, Reply> {
  readonly #send: (items: readonly Item[]) => Promise<readonly Reply[]>
  readonly #inFlight: CallsInFlight
  #batches: CallBatch<Item, Reply>[] = []

  /** `send` returns a reply for each item, in their order. */
  constructor(send: (items: readonly Item[]) => Promise<readonly Reply[]>, inFlight: CallsInFlight = { calls: 0 }) {
    this.#send = send
    this.#inFlight = inFlight
  }

  /** Resolves with what `replied` makes of the reply, or `failed` of the error. */
  ask<Result>(
    item: Item,
    bytes: number,
    replied: (reply: Reply) => Result | Promise<Result>,
    failed?: (error: unknown) => never,
  ): Promise<Result> {
    const batch = this.#batchFor(bytes)
    const at = batch.items.push(item) - 1
    return batch.replies.then((all) => replied(all[batch.from + at]!), failed)
  }

  #batchFor(bytes: number): CallBatch<Item, Reply> {
    const last = this.#batches.at(-1)
    if (last !== undefined && last.items.length < BATCH && last.bytes + bytes <= CALL_LIMIT.bytes) {
      last.bytes += bytes
      return last
    }
    // After whatever else this turn brings: many replies come in one piece, and each lets somebody go on.
    if (last === undefined) setImmediate(this.#flush)
    let resolve!: CallBatch<Item, Reply>['resolve']
    const replies = new Promise<readonly Reply[]>((resolved) => {
      resolve = resolved
    })
    const batch = { items: [], bytes, from: 0, replies, resolve }
    this.#batches.push(batch)
    return batch
  }

  readonly #flush = (): void => {
    const batches = this.#batches
    this.#batches = []
    const calls = callsOf(batches)
    if (calls.length > 1 || batches.length === 1 || this.#inFlight.calls > 0) {
      for (const call of calls) this.#call(call)
      return
    }
    const half = Math.ceil(batches.length / 2)
    this.#call(batches.slice(0, half))
    this.#call(batches.slice(half))
  }

  #call(batches: readonly CallBatch<Item, Reply>[]): void {
    const items: Item[] = []
    for (const batch of batches) {
      batch.from = items.length
      for (const item of batch.items) items.push(item)
    }
    this.#inFlight.calls++
    const replies = this.#send(items)
    replies.then(this.#returned, this.#returned)
    for (const { resolve } of batches) resolve(replies)
  }

  readonly #returned = (): void => {
    this.#inFlight.calls--
  }
}

/** As many in a call as it takes. */
function callsOf<S extends { readonly items: readonly unknown[]; readonly bytes: number }>(
  batches: readonly S[],
): S[][] {
  const calls: S[][] = []
  let count = 0
  let bytes = 0
  for (const batch of batches) {
    count += batch.items.length
    bytes += batch.bytes
    const last = calls.at(-1)
    if (last !== undefined && count <= CALL_LIMIT.count && bytes <= CALL_LIMIT.bytes) last.push(batch)
    else {
      calls.push([batch])
      count = batch.items.length
      bytes = batch.bytes
    }
  }
  return calls
}
