import { Fifo } from '../../core/fifo.ts'
import { backoff, type Clock } from '../../core/index.ts'

/** So many at a time, in the order they asked. */
export class Slots {
  #free: number
  readonly #waiting = new Fifo<() => void>()

  constructor(count: number) {
    this.#free = count
  }

  /** Resolves with the way to give it back. */
  async take(): Promise<() => void> {
    if (this.#free > 0) this.#free--
    else await new Promise<void>((resolve) => this.#waiting.push(resolve))
    return () => {
      const next = this.#waiting.shift()
      if (next === undefined) this.#free++
      else next()
    }
  }
}

/** Where one message goes: of two URLs that differ in their query only, one and the same. */
export interface Endpoint {
  readonly host: string
  readonly name: string
}

/** What is known of an endpoint that does not answer. */
export interface Silence {
  /** Requests without an answer, since the last that had one. */
  readonly count: number
  readonly error: unknown
  /** When it is to be asked again, by the monotonic clock. */
  readonly until: number
}

/** The pause of an endpoint that does not answer, by how often it did not since it is silent. */
const pauseOf = backoff({ min: '1s', max: '30s', jitter: 0 })
/** So many requests in a row without an answer are a silence; fewer where there are fewer slots for one host. */
const ENOUGH = 5
/** Of those who are silent; of more, the one that was heard of longest ago counts as any other. */
const MOST = 10_000

/**
 * Who gets the slots of a sender whose messages go to many endpoints, so that one which is away or hangs holds up nobody
 * else:
 *
 * 1. One host has at most half of the slots.
 * 2. An endpoint that gave no answer several times in a row is silent. Its next messages fail at once, and after a pause
 *    one of them asks again. An answer, whatever it is, ends the silence.
 * 3. All who are silent have half of the slots together.
 */
export class Endpoints {
  readonly #clock: Clock
  readonly #all: Slots
  readonly #forSilent: Slots
  readonly #hosts = new Map<string, { readonly slots: Slots; users: number }>()
  readonly #silences = new Map<string, Silence>()
  /** How many requests to one host at once. */
  readonly most: number
  readonly #enough: number

  constructor(concurrency: number, clock: Clock) {
    this.most = Math.ceil(concurrency / 2)
    this.#enough = Math.min(ENOUGH, this.most)
    this.#clock = clock
    this.#all = new Slots(concurrency)
    this.#forSilent = new Slots(Math.max(1, concurrency - this.most))
  }

  /** Why a message to it need not be tried now. */
  silence({ name }: Endpoint): Silence | undefined {
    const silence = this.#silences.get(name)
    return silence !== undefined && silence.until > this.#clock.monotonic() ? silence : undefined
  }

  /** It did not answer when it was asked last: one message is to go alone. */
  isSilent({ name }: Endpoint): boolean {
    return (this.#silences.get(name)?.count ?? 0) >= this.#enough
  }

  answered({ name }: Endpoint): void {
    if (this.#silences.size > 0) this.#silences.delete(name)
  }

  unanswered({ name }: Endpoint, error: unknown): void {
    const count = (this.#silences.get(name)?.count ?? 0) + 1
    this.#silences.delete(name)
    if (this.#silences.size >= MOST) this.#silences.delete(this.#silences.keys().next().value!)
    const pause = count < this.#enough ? 0 : pauseOf(count - this.#enough + 1)
    this.#silences.set(name, { count, error, until: this.#clock.monotonic() + pause })
  }

  /** Resolves when a request to it may go out, with the way to say that it is over. */
  async take(endpoint: Endpoint): Promise<() => void> {
    const { host } = endpoint
    const own = this.#hosts.get(host) ?? { slots: new Slots(this.most), users: 0 }
    this.#hosts.set(host, own)
    own.users++
    const taken = [await own.slots.take()]
    if (this.isSilent(endpoint)) taken.push(await this.#forSilent.take())
    taken.push(await this.#all.take())
    return () => {
      for (const giveBack of taken.reverse()) giveBack()
      if (--own.users === 0) this.#hosts.delete(host)
    }
  }
}
