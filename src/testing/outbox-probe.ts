import { deepStrictEqual, strictEqual } from 'node:assert/strict'
import { aborted, type Clock, type ExtensionValue, Message, type MessageOptions, uuidv7 } from '../core/index.ts'
import type { Delivery, Session, Settlement, Source } from '../flow/index.ts'
import type {
  OutboxAdmin,
  OutboxEntry,
  OutboxReader,
  OutboxState,
  Reader,
  ReaderKind,
  ReaderOptions,
} from '../outbox/index.ts'
import type { EnqueueOptions, Outbox, UnitOfWork } from '../store/index.ts'
import { NEVER } from './broker-probe.ts'
import type { StoreUnderTest, Time } from './store-probe.ts'

/** An outbox, and what the suites need beside it. */
export interface OutboxUnderTest<Tx = unknown> extends StoreUnderTest {
  readonly work: UnitOfWork<Tx>
  readonly outbox: Outbox<Tx> & OutboxReader & { readonly admin: OutboxAdmin }
  /** How cases read that do not say how. Default `owner`. */
  readonly reader?: ReaderKind
}

export const PLENTY = { count: 1000, bytes: 64 * 1024 * 1024 }

/** A new event whose id is a UUID. */
export function sample(n: number, { key, tenant, source = '/conformance' }: MessageOptions = {}, type = 'thing.done') {
  const extensions = {
    ...(key === undefined ? {} : { partitionkey: key }),
    ...(tenant === undefined ? {} : { tenantid: tenant }),
  }
  return new Message({ id: uuidv7(), source, type, extensions }, { n })
}

export function samples(count: number, options?: MessageOptions): Message[] {
  return Array.from({ length: count }, (_, n) => sample(n, options))
}

export function retry(after = 0, charged = true): Settlement {
  return { kind: 'retry', after, charged, error: new Error('the case asked for a retry') }
}

export function dead(reason = 'the case gave it up'): Settlement {
  return { kind: 'dead', reason, error: new Error(reason) }
}

export function ids(of: readonly (Message | Delivery)[]): string[] {
  return of.map((one) => (one instanceof Message ? one.id : one.message.id))
}

/** The message is the one that was enqueued, attribute by attribute and byte by byte. */
export function same(arrived: Message, sent: Message): void {
  deepStrictEqual(plain(arrived), plain(sent))
}

function plain(message: Message): object {
  const { extensions, ...attributes } = message.attributes()
  const all = { ...extensions, eventversion: message.version }
  const entries = Object.entries(all).sort(([a], [b]) => (a < b ? -1 : 1))
  const data = message.data instanceof Uint8Array ? bytes(message.data) : message.data
  return { ...attributes, extensions: entries.map(([name, value]) => [name, bytes(value)]), data }
}

function bytes(value: ExtensionValue): unknown {
  return value instanceof Uint8Array ? { base64: Buffer.from(value).toString('base64') } : value
}

/** An outbox for the time of one case, and the relays that read it. */
export class OutboxProbe {
  readonly outbox: OutboxUnderTest['outbox']
  readonly work: UnitOfWork
  readonly time: Time
  readonly #reader: ReaderKind
  readonly #relays: RelayProbe[] = []

  constructor(under: OutboxUnderTest, time: Time) {
    this.outbox = under.outbox
    this.work = under.work
    this.time = time
    this.#reader = under.reader ?? 'owner'
  }

  /** In a transaction of their own. */
  enqueue(events: readonly Message[], options?: EnqueueOptions): Promise<readonly (string | undefined)[]> {
    return this.work.withTransaction((tx) => this.outbox.enqueue(tx, events, options))
  }

  relay(options: Partial<ReaderOptions> = {}): RelayProbe {
    const relay = new RelayProbe(this.outbox, this.time, { reader: this.#reader, ...options })
    this.#relays.push(relay)
    return relay
  }

  /** All entries, as a list gives them. */
  async entries(): Promise<readonly OutboxEntry[]> {
    return this.outbox.admin.list({}, { limit: 1000 })
  }

  /** How many are in each state; what is none is left out. */
  async states(): Promise<Partial<Record<OutboxState, number>>> {
    const counts: Partial<Record<OutboxState, number>> = {}
    for (const { state } of await this.entries()) counts[state] = (counts[state] ?? 0) + 1
    return counts
  }

  async entry({ id }: Message): Promise<OutboxEntry> {
    const shown = await this.outbox.admin.show(id)
    strictEqual(shown?.entry.eventId, id, `event ${id} is there`)
    return shown!.entry
  }

  async end(): Promise<void> {
    for (const relay of this.#relays) await relay.end()
  }
}

/** How a relay asks for a reader, when nothing of that matters. */
export const READER = {
  reader: 'owner',
  shards: 1,
  lease: 60_000,
  deadKey: 'block',
  deletes: false,
  wake: false,
  attempts: 25,
} as const

/** One relay: its part in reading, its sessions, and a clock that stops when the relay does. */
export class RelayProbe {
  readonly clock: RelayClock
  readonly #reader: Reader
  readonly #time: Time
  readonly #sessions: Session[] = []

  constructor(outbox: OutboxReader, time: Time, options: Partial<ReaderOptions>) {
    this.clock = new RelayClock(time.clock)
    this.#time = time
    this.#reader = outbox.reader({ ...READER, clock: this.clock, ...options })
  }

  assignment(): Promise<readonly Source[]> {
    return this.#time.soon(this.#reader.assignment(), 'the relay gets its assignment')
  }

  /** A session with its one source, or `undefined` where another has the right to read. */
  async tryOpen(): Promise<Session | undefined> {
    const [source] = await this.assignment()
    return source === undefined ? undefined : this.openSource(source)
  }

  async openSource(source: Source): Promise<Session | undefined> {
    const session = await this.#time.soon(source.open(NEVER), 'the session is open')
    if (session !== undefined) this.#sessions.push(session)
    return session
  }

  open(): Promise<Session> {
    return this.#time.until('the relay may read', () => this.tryOpen())
  }

  /** As a relay that is stopped: sessions are closed, and it takes no part any more. */
  async close(): Promise<void> {
    for (const session of this.#sessions.splice(0)) await session.close()
    await this.#reader.close()
  }

  async end(): Promise<void> {
    for (const session of this.#sessions.splice(0)) await session.close().catch(() => {})
    await this.#reader.close().catch(() => {})
  }

  take(session: Session, demand = PLENTY): Promise<readonly Delivery[]> {
    return this.#time.soon(session.take(demand, NEVER), 'take has returned')
  }

  /** Takes until there are so many. */
  async receive(session: Session, count: number): Promise<Delivery[]> {
    const received: Delivery[] = []
    await this.#time.until(`${count} events are given`, async () => {
      received.push(...(await this.take(session, { ...PLENTY, count: count - received.length })))
      return received.length === count
    })
    return received
  }

  /** Nothing is given for so long. */
  async nothing(session: Session, what: string, ms = this.#time.quiet): Promise<void> {
    await this.#time.throughout(ms, async () => deepStrictEqual(ids(await this.take(session)), [], what))
  }

  settle(session: Session, settlement: Settlement, ...deliveries: readonly Delivery[]): Promise<number> {
    const settling = session.settle(deliveries.map((delivery) => [delivery, settlement] as const))
    return this.#time.soon(settling, 'settle has returned')
  }

  /** One at a time, each settled before the next is taken: the order in which events of a key are given. */
  async inOrder(session: Session, count: number, settlement: Settlement = { kind: 'done' }): Promise<string[]> {
    const order: string[] = []
    while (order.length < count) {
      const taken = await this.receive(session, 1)
      order.push(...ids(taken))
      await this.settle(session, settlement, ...taken)
    }
    return order
  }
}

/** A relay's own clock. Stopped, nothing in the relay goes on, as when its process is suspended or has died. */
export class RelayClock implements Clock {
  readonly #inner: Clock
  #stoppedAt: number | undefined

  constructor(inner: Clock) {
    this.#inner = inner
  }

  stop(): void {
    this.#stoppedAt = this.#inner.monotonic()
  }

  /** It goes on, and finds that time has passed. */
  wake(): void {
    this.#stoppedAt = undefined
  }

  now(): number {
    return this.#inner.now()
  }

  monotonic(): number {
    return this.#stoppedAt ?? this.#inner.monotonic()
  }

  async sleep(ms: number, signal?: AbortSignal): Promise<void> {
    await this.#inner.sleep(ms, signal)
    if (this.#stoppedAt === undefined || signal?.aborted) return
    await (signal === undefined ? new Promise(() => {}) : aborted(signal))
  }
}
