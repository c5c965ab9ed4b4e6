import { Fifo } from '../core/fifo.ts'
import { describe, type Message, warnOnce } from '../core/index.ts'
import { isMessage } from '../core/message.ts'
import type { Delivery, Demand, Session, Settled, Source } from './source.ts'

/** A message that was given up, and why. */
export interface GivenUp<M extends Message = Message> {
  readonly message: M
  readonly attempts: number
  readonly reason: string
}

/** A source in this process. What is given back comes again first, in its old order; nothing survives the process. */
export interface Pipe<M extends Message = Message> extends Source<Delivery<M>> {
  /** What was settled as dead: it is kept here and nowhere else. */
  readonly dead: readonly GivenUp<M>[]
}

/** What a message counts against byte limits: its data, and something for the rest of it. */
export function sizeOf(message: Message): number {
  const { data } = message
  return typeof data === 'string' || data instanceof Uint8Array ? data.length + 256 : 256
}

interface BufferedMessage<M extends Message> {
  readonly sequence: number
  readonly message: M
  attempts: number
}

interface PipeDelivery<M extends Message> extends Delivery<M> {
  readonly entry: BufferedMessage<M>
}

/** What can be taken: first what was given back, in its old order, then what is new. */
export class PipeBuffer<M extends Message> {
  readonly dead: GivenUp<M>[] = []
  /** How many were given and are not settled. */
  unsettled = 0
  onChange: () => void = () => {}
  #returned: BufferedMessage<M>[] = []
  #sorted = true
  readonly #fresh = new Fifo<BufferedMessage<M>>()
  #sequence = 0
  readonly #name: string

  constructor(name: string) {
    this.#name = name
  }

  get size(): number {
    return this.#returned.length + this.#fresh.size
  }

  /** What is no message is passed over: it costs nobody but itself. */
  add(message: M): void {
    if (!isMessage(message)) {
      warnOnce(`pipe ${this.#name}`, `${describe(message)} is not a message; it is passed over`)
      return
    }
    this.#fresh.push({ sequence: this.#sequence++, message, attempts: 0 })
    this.onChange()
  }

  giveBack(entry: BufferedMessage<M>): void {
    this.unsettled--
    this.#returned.push(entry)
    this.#sorted = false
    this.onChange()
  }

  forget(): void {
    this.unsettled--
    this.onChange()
  }

  take(demand: Demand): PipeDelivery<M>[] {
    const taken: PipeDelivery<M>[] = []
    for (let bytes = 0; taken.length < demand.count; ) {
      const entry = this.#peek()
      if (entry === undefined) break
      const size = sizeOf(entry.message)
      bytes += size
      if (taken.length > 0 && bytes > demand.bytes) break
      this.#drop()
      taken.push({ message: entry.message, key: entry.message.key, attempts: entry.attempts, size, entry })
    }
    this.unsettled += taken.length
    return taken
  }

  #peek(): BufferedMessage<M> | undefined {
    if (!this.#sorted) this.#returned.sort((a, b) => b.sequence - a.sequence)
    this.#sorted = true
    return this.#returned.at(-1) ?? this.#fresh.peek()
  }

  #drop(): void {
    if (this.#returned.pop() === undefined) this.#fresh.shift()
  }
}

/** Called before each take, to put more into the buffer if it can. */
export type Fill = (demand: Demand, signal: AbortSignal) => void | Promise<void>

export function pipe<M extends Message>(
  name: string,
  buffer: PipeBuffer<M>,
  fill: Fill,
  wait?: Session['wait'],
): Pipe<M> {
  return {
    name,
    features: {},
    dead: buffer.dead,
    open: async () => new PipeSession(buffer, fill, wait),
  }
}

class PipeSession<M extends Message> implements Session<PipeDelivery<M>> {
  readonly lost = new AbortController().signal
  readonly wait?: (ms: number, signal: AbortSignal) => Promise<void>
  readonly #buffer: PipeBuffer<M>
  readonly #fill: Fill
  readonly #unsettled = new Set<PipeDelivery<M>>()
  #closed = false

  constructor(buffer: PipeBuffer<M>, fill: Fill, wait: Session['wait']) {
    this.#buffer = buffer
    this.#fill = fill
    if (wait !== undefined) this.wait = wait
  }

  async take(demand: Demand, signal: AbortSignal): Promise<readonly PipeDelivery<M>[]> {
    if (signal.aborted) return []
    await this.#fill(demand, signal)
    if (signal.aborted || this.#closed) return []
    const taken = this.#buffer.take(demand)
    for (const delivery of taken) this.#unsettled.add(delivery)
    return taken
  }

  async settle(batch: readonly Settled<PipeDelivery<M>>[]): Promise<number> {
    let stale = 0
    for (const [delivery, settlement] of batch) {
      if (!this.#unsettled.delete(delivery)) {
        stale++
        continue
      }
      const { entry } = delivery
      // The flow has counted what it tried again itself.
      entry.attempts = delivery.attempts
      if (settlement.kind === 'retry' && settlement.charged) entry.attempts++
      if (settlement.kind === 'dead') {
        this.#buffer.dead.push({ message: entry.message, attempts: entry.attempts + 1, reason: settlement.reason })
      }
      if (settlement.kind === 'done' || settlement.kind === 'dead') this.#buffer.forget()
      else this.#buffer.giveBack(entry)
    }
    return stale
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const { entry } of this.#unsettled) this.#buffer.giveBack(entry)
    this.#unsettled.clear()
  }
}
