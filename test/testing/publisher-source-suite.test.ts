import { describe, expect, test } from 'vitest'
import { InProcessBroker, type InProcessDelivery } from '../../src/brokers/in-process/index.ts'
import { Message } from '../../src/core/index.ts'
import { DONE, OK, type Publisher, RELEASE, type Session, type Settled, type Source } from '../../src/flow/index.ts'
import { type BrokerFactory, brokerSuite } from '../../src/testing/index.ts'

type S = Session<InProcessDelivery>

/** An in-process broker with something wrong with it. */
interface Fault {
  publish?: (broker: InProcessBroker, messages: Parameters<Publisher['publish']>[0]) => ReturnType<Publisher['publish']>
  session?: (session: S) => Partial<S>
}

const features = {
  groups: true,
  competing: true,
  redelivers: true,
  delays: true,
  attempts: true,
  ordered: true,
  holdsKeys: true,
  deadLetters: true,
}

function factory(fault: Fault): BrokerFactory {
  return {
    name: 'faulty',
    features,
    patience: 4000,
    quiet: 100,
    async create() {
      const broker = new InProcessBroker()
      const wrap = (source: Source<InProcessDelivery>): Source => ({
        name: source.name,
        features: source.features,
        async open(signal) {
          const session = (await source.open(signal))!
          const whole: S = {
            lost: session.lost,
            take: (demand, stop) => session.take(demand, stop),
            wait: (ms, stop) => session.wait!(ms, stop),
            settle: (batch) => session.settle(batch),
            close: () => session.close(),
          }
          return { ...whole, ...fault.session?.(session) } as unknown as Session
        },
      })
      const { publish } = fault
      return {
        publisher: publish === undefined ? broker : { ...broker, publish: (messages) => publish(broker, messages) },
        source: (group) => wrap(broker.source(group)),
        deadLetters: async (group) => broker.dead(group),
        close: () => broker.close(),
      }
    },
  }
}

function settleAs(session: S, change: (settled: Settled<InProcessDelivery>) => Settled<InProcessDelivery>) {
  return { settle: (batch: readonly Settled<InProcessDelivery>[]) => session.settle(batch.map(change)) }
}

/** What a careless adapter does, and the case that must notice. */
const faults: [what: string, notices: string, fault: Fault][] = [
  [
    'drops an extension',
    'every attribute and extension arrives',
    {
      publish: (broker, messages) => broker.publish(messages.map((m) => new Message({ ...m, extensions: {} }, m.data))),
    },
  ],
  [
    'parses and prints JSON',
    'JSON text arrives byte by byte: a pass-through changes nothing',
    {
      publish: (broker, messages) =>
        broker.publish(messages.map((m) => m.withData(JSON.stringify(JSON.parse(String(m.data) || 'null'))))),
    },
  ],
  [
    'sends bytes as text',
    'bytes arrive, all 256 of them',
    { publish: (broker, messages) => broker.publish(messages.map((m) => m.withData(Buffer.from(m.data).toString()))) },
  ],
  [
    'confirms before it has published all',
    'a batch of 1000 arrives whole',
    {
      publish: async (broker, messages) => {
        await broker.publish(messages.slice(0, 999))
        return messages.map(() => OK)
      },
    },
  ],
  [
    'publishes a batch backwards',
    'messages of one key come in the order they were published',
    { publish: (broker, messages) => broker.publish([...messages].reverse()) },
  ],
  [
    'acks nothing',
    'what is done does not come again, to a new session neither',
    { session: () => ({ settle: async () => 0 }) },
  ],
  [
    'acks on delivery',
    'what a session leaves unsettled comes again to the next',
    {
      session: (session) => ({
        async take(demand, signal) {
          const taken = await session.take(demand, signal)
          await session.settle(taken.map((delivery) => [delivery, DONE]))
          return taken
        },
      }),
    },
  ],
  [
    'acks what was released',
    'what is released comes again as if it had never been taken',
    { session: (session) => settleAs(session, ([d, s]) => [d, s.kind === 'release' ? DONE : s]) },
  ],
  [
    'charges a release',
    'what is released comes again as if it had never been taken',
    {
      session: (session) =>
        settleAs(session, ([d, s]) => [
          d,
          s.kind === 'release' ? { kind: 'retry', after: 0, charged: true, error: undefined } : s,
        ]),
    },
  ],
  [
    'does not count attempts',
    'a charged retry comes again, and the attempt is counted',
    { session: (session) => settleAs(session, ([d, s]) => [d, s.kind === 'retry' ? { ...s, charged: false } : s]) },
  ],
  [
    'counts every retry',
    'an uncharged retry comes again, and costs no attempt',
    { session: (session) => settleAs(session, ([d, s]) => [d, s.kind === 'retry' ? { ...s, charged: true } : s]) },
  ],
  [
    'requeues without a delay',
    'a retry comes after its delay and not before, and others go past it',
    { session: (session) => settleAs(session, ([d, s]) => [d, s.kind === 'retry' ? { ...s, after: 0 } : s]) },
  ],
  [
    'drops what is dead',
    'what is dead does not come again, and is found with its reason',
    { session: (session) => settleAs(session, ([d, s]) => [d, s.kind === 'dead' ? DONE : s]) },
  ],
  [
    'lets a key go on while one of it waits',
    'while one of a key waits for its retry, later ones wait too and other keys do not',
    {
      session: (session) => settleAs(session, ([d, s]) => [d, s.kind === 'retry' ? RELEASE : s]),
    },
  ],
  [
    'keeps what a closed session had',
    'what a session leaves unsettled comes again to the next',
    { session: () => ({ close: async () => {} }) },
  ],
  [
    'reports stale settlements as fresh',
    'a settlement after the session was closed changes nothing',
    {
      session: (session) => ({
        settle: async (batch) => {
          await session.settle(batch)
          return 0
        },
      }),
    },
  ],
  [
    'gives more than was asked for',
    'a take gives no more than was asked for',
    { session: (session) => ({ take: (demand, signal) => session.take({ ...demand, count: 1000 }, signal) }) },
  ],
  [
    'forgets about bytes',
    'a take is bounded by bytes, and gives at least one',
    { session: (session) => ({ take: (demand, signal) => session.take({ ...demand, bytes: 1e9 }, signal) }) },
  ],
  [
    'waits although it was told to stop',
    'a take whose signal is aborted returns, and takes nothing with it',
    { session: () => ({ take: () => new Promise(() => {}) }) },
  ],
  [
    'throws when closed twice',
    'closing twice is harmless',
    {
      session: (session) => {
        let closed = false
        return {
          async close() {
            if (closed) throw new Error('closed already')
            closed = true
            await session.close()
          },
        }
      },
    },
  ],
]

// Each waits for what does not come, with a broker of its own.
describe('broker suite', { concurrent: true }, () => {
  for (const [what, notices, fault] of faults) {
    test(`notices a broker that ${what}`, async () => {
      const found = brokerSuite(factory(fault)).find(({ name }) => name === notices)
      expect(found?.skip).toBeUndefined()
      await expect(found!.run()).rejects.toThrow()
    })
  }

  test('the same broker with nothing wrong passes what the others fail', async () => {
    const sound = factory({ publish: (broker, messages) => broker.publish(messages), session: () => ({}) })
    const noticing = new Set(faults.map(([, notices]) => notices))
    for (const { name, run } of brokerSuite(sound)) if (noticing.has(name)) await run()
  })

  test('a broker that declares less is asked less, and the others are not', () => {
    const create = factory({}).create
    const little = brokerSuite({ name: 'little', features: {}, create })
    const skipped = little.filter(({ skip }) => skip !== undefined)
    expect(skipped.length).toBeGreaterThan(10)
    for (const { skip } of skipped) expect(skip).toMatch(/^little does not declare: /)
  })

  test('misspelt features and settings are refused', () => {
    const { create } = factory({})
    expect(() => brokerSuite({ name: 'x', features: { redeliver: true } as never, create })).toThrow('redelivers')
    expect(() => brokerSuite({ name: 'x', features: {}, create }, { skip: {} } as never)).toThrow('skips')
  })
})
