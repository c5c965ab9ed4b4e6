import { describe } from 'vitest'
import { InProcessBroker } from '../../../src/brokers/in-process/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import { brokerSuite } from '../../../src/testing/index.ts'
import { runSuite } from '../../support/suite.ts'

const suite = brokerSuite({
  name: 'in-process',
  features: {
    groups: true,
    competing: true,
    redelivers: true,
    delays: true,
    attempts: true,
    ordered: true,
    holdsKeys: true,
    deadLetters: true,
    refuses: true,
  },
  async create() {
    const broker = new InProcessBroker()
    return {
      publisher: broker,
      source: (group) => broker.source(group),
      deadLetters: async (group) => broker.dead(group),
      // JSON cannot hold it; nobody noticed before.
      refused: () => new Message({ id: 'r', source: '/s', type: 't' }, { n: 1n }) as unknown as RawMessage,
      close: () => broker.close(),
    }
  },
})

describe('in-process broker', () => {
  runSuite(suite)
})
