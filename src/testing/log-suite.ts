import { deepStrictEqual, ok, rejects, strictEqual, throws } from 'node:assert/strict'
import { event, type Message } from '../core/index.ts'
import { type OutboxAdmin, type OutboxReader, Relay } from '../outbox/index.ts'
import type { Log, LogEvent, LogPage, Position } from '../projection/port.ts'
import type { Outbox, UnitOfWork } from '../store/index.ts'
import { collector } from './collect.ts'
import type { Suite, SuiteOptions } from './conformance.ts'
import { openTransaction, type StoreCase, type StoreFactory, type StoreUnderTest, storeSuite } from './store-probe.ts'

/** A log, and the outbox it is made of. */
export interface LogUnderTest extends StoreUnderTest {
  readonly log: Log
  readonly outbox: Outbox<never> & OutboxReader & { readonly admin: OutboxAdmin }
  readonly work: UnitOfWork<never>
}

/** What a log can do. */
export interface LogFeatures {
  /** Transactions run side by side. */
  readonly concurrent?: boolean
}

/** Makes a log for the suite, fresh for each case. */
export type LogFactory = StoreFactory<LogUnderTest, LogFeatures>

const Placed = event<{ n: number }>('order.placed')

/** What every Log must do: every committed event once, in order, and nothing past what may still appear. */
export function logSuite(factory: LogFactory, options: SuiteOptions = {}): Suite {
  const features = ['concurrent'] satisfies (keyof LogFeatures)[]
  return storeSuite(
    { kind: 'log', features, cases, probe: (made: LogUnderTest) => new LogProbe(made) },
    factory,
    options,
  )
}

class LogProbe {
  readonly log: Log
  readonly outbox: LogUnderTest['outbox']
  readonly work: UnitOfWork<never>

  constructor({ log, outbox, work }: LogUnderTest) {
    this.log = log
    this.outbox = outbox
    this.work = work
  }

  /** In a transaction of their own; returns their receipts. */
  enqueue(...numbers: number[]): Promise<readonly (string | undefined)[]> {
    const events = numbers.map((n) => Placed({ n }, { key: `k${n % 3}` }))
    return this.work.withTransaction((tx) => this.outbox.enqueue(tx, events))
  }

  /** A transaction that has enqueued and is still open: the function that ends it. */
  async open(...numbers: number[]): Promise<(commit: boolean) => Promise<void>> {
    const events = numbers.map((n) => Placed({ n }))
    const transaction = await openTransaction(this.work, (tx) => this.outbox.enqueue(tx, events))
    return (commit) => (commit ? transaction.commit() : transaction.rollback())
  }

  async rollBack(...numbers: number[]): Promise<void> {
    await (await this.open(...numbers))(false)
  }

  /** Everything that can be read, in pages. */
  async all(after: Position = 0n, limit = 2): Promise<LogEvent[]> {
    const events: LogEvent[] = []
    for (let inVain = 0; inVain < 3; ) {
      const page: LogPage = await this.log.read(after, limit)
      events.push(...page.events)
      if (page.heldBy !== undefined) return events
      // Where nobody holds it back, it may yet ask for one more look: a checkpoint came between two statements.
      inVain = page.upTo === after ? inVain + 1 : 0
      after = page.upTo
    }
    return events
  }

  async numbers(): Promise<number[]> {
    return (await this.all()).map(numberIn)
  }
}

function numberIn({ message }: LogEvent): number {
  return JSON.parse(message!.data as string).n
}

const AUDIT = { by: 'suite', note: 'a case' }

const cases: readonly StoreCase<LogProbe>[] = [
  {
    name: 'events come in the order of their numbers, with what was written',
    async run(probe) {
      const receipts = await probe.enqueue(1, 2, 3)
      const events = await probe.all()
      deepStrictEqual(events.map(numberIn), [1, 2, 3])
      deepStrictEqual(
        events.map(({ position }) => String(position)),
        receipts,
      )
      const { key, type, message, recordedAt } = events[0]!
      deepStrictEqual([key, type, message?.key], ['k1', 'order.placed', 'k1'])
      ok(!Number.isNaN(recordedAt.getTime()))
      strictEqual((await probe.log.head()).position, events[2]!.position)
    },
  },
  {
    name: 'an empty log has nothing, and begins at 0',
    async run({ log }) {
      const { events, upTo, heldBy } = await log.read(0n, 10)
      deepStrictEqual({ events, upTo, heldBy }, { events: [], upTo: 0n, heldBy: undefined })
      const { position, trimmed, incarnation } = await log.head()
      deepStrictEqual([position, trimmed], [0n, 0n])
      ok(incarnation.length > 0)
    },
  },
  {
    name: 'a read tells which event is at the place it goes on from, wherever it is stored by now',
    async run(probe) {
      await probe.enqueue(1, 2)
      const relay = new Relay({ from: probe.outbox, to: collector() })
      const places = async () => {
        const [one, two] = await probe.all()
        ok(one!.id !== two!.id)
        strictEqual((await probe.log.read(one!.position, 10)).before, one!.id)
        strictEqual((await probe.log.read(two!.position, 10)).before, two!.id)
        strictEqual((await probe.log.read(two!.position + 1n, 10)).before, null)
        strictEqual((await probe.log.read(0n, 10)).before, undefined)
        return [one!.id, two!.id]
      }
      const ids = await places()
      await relay.runOnce()
      await relay.stop()
      await probe.outbox.admin.clean({ retention: 0 })
      deepStrictEqual(await places(), ids)
    },
  },
  {
    name: 'the gap of a rollback stalls nothing',
    async run(probe) {
      await probe.enqueue(1)
      await probe.rollBack(2, 3)
      await probe.enqueue(4)
      await probe.rollBack(5)
      deepStrictEqual(await probe.numbers(), [1, 4])
      await probe.enqueue(6)
      deepStrictEqual(await probe.numbers(), [1, 4, 6])
    },
  },
  {
    name: 'nothing is read past what an open transaction may still write, and who holds it back is told',
    needs: ['concurrent'],
    async run(probe) {
      await probe.enqueue(1)
      const end = await probe.open(2)
      await probe.enqueue(3)
      const [first] = await probe.all()
      const before = Date.now()
      const held = await probe.log.read(first!.position, 10)
      deepStrictEqual([held.events, held.upTo], [[], first!.position])
      ok(held.heldBy !== undefined && held.heldBy.since.getTime() <= before + 1000)
      await end(true)
      deepStrictEqual(await probe.numbers(), [1, 2, 3])
      strictEqual((await probe.log.read(first!.position, 10)).heldBy, undefined)
    },
  },
  {
    name: 'a transaction that rolls back lets go of what it held',
    needs: ['concurrent'],
    async run(probe) {
      const end = await probe.open(1)
      await probe.enqueue(2)
      deepStrictEqual(await probe.numbers(), [])
      await end(false)
      deepStrictEqual(await probe.numbers(), [2])
    },
  },
  {
    name: 'a later open transaction holds back nothing before it',
    needs: ['concurrent'],
    async run(probe) {
      await probe.enqueue(1)
      const end = await probe.open(2)
      try {
        deepStrictEqual(await probe.numbers(), [1])
      } finally {
        await end(true)
      }
    },
  },
  {
    name: 'an event keeps its number, wherever it is: published, cleaned, replayed',
    async run(probe) {
      const receipts = await probe.enqueue(1, 2, 3)
      const sink = collector()
      const relay = new Relay({ from: probe.outbox, to: sink })
      await relay.runOnce()
      const positions = async () => (await probe.all()).map(({ position }) => String(position))
      deepStrictEqual(await positions(), receipts)
      strictEqual(await probe.outbox.admin.replay({}, AUDIT), 3)
      deepStrictEqual(await positions(), receipts)
      await relay.runOnce()
      await probe.outbox.admin.clean({ retention: 0 })
      deepStrictEqual(await positions(), receipts)
      await relay.stop()
    },
  },
  {
    name: 'a discarded event was not sent, and it happened',
    async run(probe) {
      await probe.enqueue(1, 2)
      const window = { since: new Date(0), until: new Date(Date.now() + 60_000), topic: 'order.placed' }
      await probe.outbox.admin.discardPending(window, AUDIT, { expected: 2 })
      strictEqual((await probe.outbox.admin.list()).length, 0)
      deepStrictEqual(await probe.numbers(), [1, 2])
    },
  },
  {
    name: 'a relay puts the number on the message, so that texts compare as numbers do',
    async run(probe) {
      const receipts = await probe.enqueue(1, 2)
      const sink = collector()
      const relay = new Relay({ from: probe.outbox, to: sink })
      await relay.runOnce()
      const sent = sink.messages.map(({ extensions }) => String(extensions['sequence']))
      deepStrictEqual(
        sent.map((text) => String(BigInt(text))),
        receipts,
      )
      ok(sent.every((text) => text.length === 19))
      const read = (await probe.all()).map(({ message }) => message!.extensions['sequence'])
      deepStrictEqual(read, sent)
      await relay.stop()
    },
  },
  {
    name: 'what would leave a hole or come before its time is refused, with the reason',
    async run(probe) {
      const enqueue = (event: Message, options = {}) =>
        probe.work.withTransaction((tx) => probe.outbox.enqueue(tx, [event], options))
      const later = { availableAt: new Date(Date.now() + 60_000) }
      await rejects(enqueue(Placed({ n: 1 }), later), /availableAt: .* is a log: .* before its time/)
      const numbered = Placed({ n: 1 }).with({ extensions: { sequence: '7' } })
      await rejects(enqueue(numbered), /sequence: .* is a log/)
      throws(
        () => new Relay({ from: probe.outbox, to: collector(), deleteOnPublish: true }),
        /deleteOnPublish: .* is a log: .* missing from it for good/,
      )
      await rejects(probe.outbox.admin.replay({}, AUDIT, { asNew: true }), /asNew: .* is a log/)
      deepStrictEqual(await probe.numbers(), [])
    },
  },
  {
    name: 'a token is the log and the positions of a write',
    async run(probe) {
      const receipts = (await probe.enqueue(1, 2)) as string[]
      const token = probe.log.token([...receipts].reverse())
      const { incarnation } = await probe.log.head()
      deepStrictEqual(token, { log: probe.log.id, incarnation, positions: receipts.map(BigInt) })
      deepStrictEqual(probe.log.token(receipts[0]!).positions, [BigInt(receipts[0]!)])
      for (const wrong of ['', 'x', '-1', [], [undefined], undefined]) {
        throws(() => probe.log.token(wrong as string), { code: 'INVALID_OPTION' })
      }
    },
  },
  {
    name: 'a position that is none is refused',
    async run({ log }) {
      for (const wrong of [-1n, 0, '0', undefined]) {
        await rejects(log.read(wrong as Position, 10), { code: 'INVALID_OPTION' })
      }
      await rejects(log.read(0n, 0), { code: 'INVALID_OPTION' })
    },
  },
  {
    name: 'one that waits is told of a commit',
    async run(probe) {
      const listener = await probe.log.listen?.()
      if (listener === undefined) return
      try {
        const none = new AbortController().signal
        // At once at first: earlier commits notified nobody.
        await listener.wait(50, none)
        const began = Date.now()
        const told = listener.wait(10_000, none)
        await probe.enqueue(1)
        await told
        ok(Date.now() - began < 5_000, 'it was told only after a long time')
      } finally {
        await listener.close()
      }
    },
  },
]
