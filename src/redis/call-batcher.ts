import { listOf, type RedisReply } from '../drivers/redis/redis.ts'

/**
 * What one call of a script takes along at most, unless a single item is more: Redis does nothing else meanwhile, which
 * is about half a millisecond of short commands.
 */
export const MOST_TOGETHER = { count: 64, bytes: 256 * 1024 } as const

/** So many are not parted: a call for fewer would cost more than it saves. */
const SHARE = 8

const ALL_WELL: readonly RedisReply[] = new Array(MOST_TOGETHER.count).fill(1)

/** Of a script that answers 1 for each item where all is well with it, and for all of them when it is with all. */
export function answersOf(reply: RedisReply): readonly RedisReply[] {
  return reply === 1 ? ALL_WELL : listOf(reply)
}

/** The calls on their way to a server, of all who may share it. */
export interface CallsInFlight {
  calls: number
}

/** Some that were asked one after the other, and go in the same call. */
interface Share<Item, Answer> {
  readonly items: Item[]
  bytes: number
  /** Where its items begin in the call. */
  from: number
  /** Those of the call. One promise for all: one for each, with what resolves it, would cost more than the rest does. */
  readonly answers: Promise<readonly Answer[]>
  readonly resolve: (answers: Promise<readonly Answer[]>) => void
}

/**
 * What is asked in one turn of the event loop goes to the server in one call, each with an answer of its own. A call of
 * its own for each would cost both sides more than the work in it. Nothing waits for others to come: what is asked
 * alone goes alone, and calls follow each other without waiting for answers.
 *
 * Whoever is answered together asks together again, so that the server would wait for this process and this process for
 * the server, by turns. So where many go and nothing is on its way, they go in two calls: the server does the second
 * while this process goes on with the answers of the first.
 *
 * When a call fails, all that were in it fail with its error, as if each had been sent alone at that moment.
 */
export class Together<Item, Answer> {
  readonly #send: (items: readonly Item[]) => Promise<readonly Answer[]>
  readonly #line: CallsInFlight
  #shares: Share<Item, Answer>[] = []

  /** `send` answers for each item, in their order. */
  constructor(send: (items: readonly Item[]) => Promise<readonly Answer[]>, line: CallsInFlight = { calls: 0 }) {
    this.#send = send
    this.#line = line
  }

  /** Resolves with what `answered` makes of the answer, or `failed` of the error. */
  ask<Result>(
    item: Item,
    bytes: number,
    answered: (answer: Answer) => Result | Promise<Result>,
    failed?: (error: unknown) => never,
  ): Promise<Result> {
    const share = this.#shareFor(bytes)
    const at = share.items.push(item) - 1
    return share.answers.then((all) => answered(all[share.from + at]!), failed)
  }

  #shareFor(bytes: number): Share<Item, Answer> {
    const last = this.#shares.at(-1)
    if (last !== undefined && last.items.length < SHARE && last.bytes + bytes <= MOST_TOGETHER.bytes) {
      last.bytes += bytes
      return last
    }
    // After whatever else this turn brings: many answers come in one piece, and each lets somebody go on.
    if (last === undefined) setImmediate(this.#flush)
    let resolve!: Share<Item, Answer>['resolve']
    const answers = new Promise<readonly Answer[]>((resolved) => {
      resolve = resolved
    })
    const share = { items: [], bytes, from: 0, answers, resolve }
    this.#shares.push(share)
    return share
  }

  readonly #flush = (): void => {
    const shares = this.#shares
    this.#shares = []
    const calls = callsOf(shares)
    if (calls.length > 1 || shares.length === 1 || this.#line.calls > 0) {
      for (const call of calls) this.#call(call)
      return
    }
    const half = Math.ceil(shares.length / 2)
    this.#call(shares.slice(0, half))
    this.#call(shares.slice(half))
  }

  #call(shares: readonly Share<Item, Answer>[]): void {
    const items: Item[] = []
    for (const share of shares) {
      share.from = items.length
      for (const item of share.items) items.push(item)
    }
    this.#line.calls++
    const answers = this.#send(items)
    answers.then(this.#answered, this.#answered)
    for (const { resolve } of shares) resolve(answers)
  }

  readonly #answered = (): void => {
    this.#line.calls--
  }
}

/** As many in a call as it takes. */
function callsOf<S extends { readonly items: readonly unknown[]; readonly bytes: number }>(
  shares: readonly S[],
): S[][] {
  const calls: S[][] = []
  let count = 0
  let bytes = 0
  for (const share of shares) {
    count += share.items.length
    bytes += share.bytes
    const last = calls.at(-1)
    if (last !== undefined && count <= MOST_TOGETHER.count && bytes <= MOST_TOGETHER.bytes) last.push(share)
    else {
      calls.push([share])
      count = share.items.length
      bytes = share.bytes
    }
  }
  return calls
}
