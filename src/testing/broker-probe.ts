import { deepStrictEqual, ok } from 'node:assert/strict'
import { type ExtensionValue, Message, type RawMessage, systemClock } from '../core/index.ts'
import type { Delivery, Outcome, Publisher, Session, Settlement, Source } from '../flow/index.ts'
import { within } from './conformance.ts'

/** One broker as a case of the suite uses it: everything in it is fresh, and nobody else's messages are. */
export interface BrokerUnderTest {
  readonly publisher: Publisher
  /** The messages of `publisher`, as the group of that name gets them. The same name again is the same group. */
  source(group: string): Source
  /** What the group has given up, for `deadLetters`. The reason may have been shortened. */
  deadLetters?(group: string): Promise<readonly { readonly message: RawMessage; readonly reason: string }[]>
  /** A message this publisher refuses (too large, say), for `refuses`. */
  refused?(): Message
  close(): Promise<void>
}

export const NEVER: AbortSignal = new AbortController().signal

const PLENTY = 64 * 1024 * 1024

let made = 0

/** A new message with an id of its own. */
export function message(
  data: string | Uint8Array = '{"n":1}',
  attributes: { key?: string; type?: string } = {},
): RawMessage {
  const id = `m-${process.pid}-${++made}`
  const extensions = attributes.key === undefined ? {} : { partitionkey: attributes.key }
  return new Message({ id, source: '/conformance', type: attributes.type ?? 'conformance.tested', extensions }, data)
}

/** One broker for the time of one case, and the sessions opened in it. */
export class BrokerProbe {
  readonly broker: BrokerUnderTest
  readonly #patience: number
  readonly #sessions: Session[] = []

  constructor(broker: BrokerUnderTest, patience: number) {
    this.broker = broker
    this.#patience = patience
  }

  async open(group = 'one'): Promise<Session> {
    const source = this.broker.source(group)
    let session: Session | undefined
    await this.eventually(`a session of ${group} is open`, async () => {
      session = await within(this.#patience, source.open(NEVER), () => 'the session is not open')
      return session !== undefined
    })
    this.#sessions.push(session!)
    return session!
  }

  async publish(messages: readonly RawMessage[]): Promise<readonly Outcome[]> {
    const publishing = this.broker.publisher.publish(messages, NEVER)
    return await within(this.#patience, publishing, () => 'publish has not returned')
  }

  /** Publishes, and all of it must arrive. */
  async send(...messages: readonly RawMessage[]): Promise<void> {
    const outcomes = await this.publish(messages)
    deepStrictEqual(
      outcomes.map(described),
      messages.map(() => 'ok'),
      'every outcome is ok',
    )
  }

  /** Takes until there are `count` deliveries. */
  async receive(session: Session, count: number): Promise<Delivery[]> {
    const received: Delivery[] = []
    const end = systemClock.monotonic() + this.#patience
    while (received.length < count) {
      const left = end - systemClock.monotonic()
      ok(left > 0, `${received.length} of ${count} messages have come within ${this.#patience} ms`)
      const taken = await this.takeOnce(session, count - received.length)
      received.push(...taken)
      if (taken.length === 0) await rest(session, Math.min(left, 50))
    }
    return received
  }

  /** One take, whatever it gives. */
  async takeOnce(session: Session, count: number, bytes = PLENTY): Promise<readonly Delivery[]> {
    // A take may wait for more; a test does not.
    const signal = AbortSignal.timeout(1000)
    return await within(this.#patience, session.take({ count, bytes }, signal), () => 'take has not returned')
  }

  /** Nothing comes for so long. */
  async nothing(session: Session, ms: number, what: string): Promise<void> {
    const end = systemClock.monotonic() + ms
    for (let left = ms; left > 0; left = end - systemClock.monotonic()) {
      const signal = AbortSignal.timeout(Math.max(1, Math.ceil(left)))
      const taken = await session.take({ count: 10, bytes: PLENTY }, signal)
      deepStrictEqual(ids(taken), [], what)
      await rest(session, Math.min(left, 50))
    }
  }

  async settle(session: Session, settlement: Settlement, ...deliveries: readonly Delivery[]): Promise<number> {
    const settling = session.settle(deliveries.map((delivery) => [delivery, settlement] as const))
    return await within(this.#patience, settling, () => 'settle has not returned')
  }

  async close(session: Session): Promise<void> {
    await within(this.#patience, session.close(), () => 'close has not returned')
  }

  /** Looks again until it is true. */
  async eventually(what: string, condition: () => Promise<boolean>): Promise<void> {
    const end = systemClock.monotonic() + this.#patience
    while (!(await condition())) {
      ok(systemClock.monotonic() < end, `within ${this.#patience} ms: ${what}`)
      await systemClock.sleep(20)
    }
  }

  async end(): Promise<void> {
    for (const session of this.#sessions) await session.close().catch(() => {})
    await this.broker.close()
  }
}

async function rest(session: Session, ms: number): Promise<void> {
  await (session.wait?.(ms, NEVER) ?? systemClock.sleep(ms))
}

export function ids(of: readonly { message: Message }[]): string[] {
  return of.map(({ message }) => message.id)
}

function described(outcome: Outcome): string {
  return outcome.kind === 'ok' ? 'ok' : `${outcome.kind}: ${String(outcome.error)}`
}

/** The received message is the published one, attribute by attribute and byte by byte. */
export function same(received: Message, published: Message): void {
  deepStrictEqual(wire(received), wire(published))
}

/** As CloudEvents has it on the wire: text and UTF-8 bytes are the same, and so are a number and its digits. */
function wire({ data, ...rest }: Message): object {
  const { id, source, type, subject, time, datacontenttype, dataschema, extensions } = rest
  const bytes = Buffer.from(data as Uint8Array)
  // Data without a type is JSON, whether that is said or not.
  const contentType = datacontenttype ?? (bytes.length > 0 ? 'application/json' : undefined)
  const entries = Object.entries(extensions).map(([name, value]) => [name, canonical(value)] as const)
  return {
    attributes: { id, source, type, subject, time, datacontenttype: contentType, dataschema },
    extensions: Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1))),
    data: bytes.toString('base64'),
  }
}

function canonical(value: ExtensionValue): string {
  return value instanceof Uint8Array ? Buffer.from(value).toString('base64') : String(value)
}
