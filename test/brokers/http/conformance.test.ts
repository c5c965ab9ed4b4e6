import { describe } from 'vitest'
import { InProcessBroker } from '../../../src/brokers/in-process/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import { checkOutcomes, Flow, type Publisher, type Source } from '../../../src/flow/index.ts'
import { brokerSuite, type SuiteOptions } from '../../../src/testing/index.ts'
import { runSuite } from '../../support/suite.ts'
import { sender, serveReceiver } from './support.ts'

/**
 * An answer comes when its message is settled, so a publish ends then: what publishes is a flow with a queue behind it,
 * as a relay is with its outbox. The queue here stands for that.
 */
async function create(options: { mode: 'binary' | 'structured'; keyed: boolean }) {
  const { mode, keyed } = options
  const site = await serveReceiver({ maxMessages: 2000, timeout: '60s' })
  const http = sender(site.url, { mode, concurrency: 1000, timeout: '60s' })
  const queue = new InProcessBroker()
  const from = queue.source('to be sent')
  const flow = new Flow({
    name: 'sender',
    from: keyed ? from : withoutKeys(from),
    step: {
      size: 1,
      ordered: false,
      batch: async (deliveries, signal) => {
        const messages = deliveries.map(({ message }) => message as RawMessage)
        return checkOutcomes('http', await http.publish(messages, signal), messages.length)
      },
    },
    concurrency: 1000,
    retry: { attempts: 1000, backoff: { min: 0, max: 100 } },
    outage: { min: 10, max: 100 },
    grace: 100,
  })
  await flow.start()
  const publisher: Publisher = { name: 'queue', features: {}, publish: (messages) => queue.publish(messages) }
  return {
    publisher,
    source: () => site.receiver,
    async close() {
      await flow.stop()
      await http.close()
      await site[Symbol.asyncDispose]()
    },
  }
}

/** All of them at once, whatever their keys. */
function withoutKeys(source: Source): Source {
  return {
    ...source,
    name: source.name,
    features: source.features,
    async open(signal) {
      const session = (await source.open(signal))!
      return {
        lost: session.lost,
        take: async (demand, stop) =>
          (await session.take(demand, stop)).map((delivery) => ({ ...delivery, key: undefined, inner: delivery })),
        wait: (ms, stop) => session.wait!(ms, stop),
        settle: (batch) =>
          session.settle(batch.map(([delivery, how]) => [(delivery as unknown as { inner: never }).inner, how])),
        close: () => session.close(),
      }
    },
  }
}

const features = { competing: true, redelivers: true, delays: true }
const oneOfAKey = 'of one key a sender has one request on its way, and its answer comes when the message is settled'
const kinds: { name: string; keyed: boolean; mode: 'binary' | 'structured'; options: SuiteOptions }[] = [
  {
    name: 'http, binary, keys in order',
    keyed: true,
    mode: 'binary',
    options: { skips: { 'a batch of 1000 arrives whole': oneOfAKey } },
  },
  { name: 'http, structured, without keys', keyed: false, mode: 'structured', options: {} },
]

for (const { name, keyed, mode, options } of kinds) {
  const made = {
    name,
    features: { ...features, ...(keyed ? { ordered: true } : {}) },
    create: () => create({ mode, keyed }),
    patience: 30_000,
  }
  describe(name, () => {
    runSuite(brokerSuite(made, options), { timeout: 60_000, concurrent: true })
  })
}

/**
 * The other end: what publishes is the sender itself, and what it is answered comes when a queue has the message. The suite
 * reads that queue, which is known to pass.
 */
async function createSender(mode: 'binary' | 'structured') {
  const site = await serveReceiver({ maxMessages: 2000, timeout: '60s' })
  const queue = new InProcessBroker()
  const consumer = new Flow({
    name: 'into the queue',
    from: site.receiver,
    step: {
      size: 100,
      ordered: true,
      batch: async (deliveries) => await queue.publish(deliveries.map(({ message }) => message)),
    },
  })
  // Groups are there before anything comes.
  const groups = new Map(['a', 'b'].map((group) => [group, queue.source(group)]))
  await consumer.start()
  const http = sender(site.url, { mode, concurrency: 50, timeout: '60s' })
  return {
    publisher: http,
    source: (group: string): Source => {
      const inner = groups.get(group) ?? queue.source(group)
      // It holds keys; but the sender does not keep their order.
      return { name: inner.name, features: { redelivers: true }, open: (signal) => inner.open(signal) }
    },
    refused: () => new Message({ id: 'r', source: '/s', type: 't' }, { n: 1n }) as unknown as RawMessage,
    async close() {
      await consumer.stop()
      await http.close()
      await queue.close()
      await site[Symbol.asyncDispose]()
    },
  }
}

for (const mode of ['binary', 'structured'] as const) {
  const made = {
    name: `http sender, ${mode}`,
    features: { competing: true, redelivers: true, delays: true, attempts: true, refuses: true },
    create: () => createSender(mode),
    patience: 30_000,
  }
  describe(made.name, () => {
    runSuite(brokerSuite(made), { timeout: 60_000, concurrent: true })
  })
}
