import { describe } from 'vitest'
import { event } from '../../src/index.ts'
import { type MemoryTransaction, memory } from '../../src/memory/index.ts'
import {
  barrierSuite,
  FakeClock,
  inboxStoreSuite,
  leadershipSuite,
  logSuite,
  outboxAdminSuite,
  outboxReaderSuite,
  outboxStoreSuite,
  type Suite,
  sagaStoreSuite,
  unitOfWorkSuite,
} from '../../src/testing/index.ts'
import { runSuite } from '../support/suite.ts'

const Written = event<{ word: string }>('word.written')

async function create() {
  const clock = new FakeClock()
  const db = memory({ clock })
  return {
    db,
    work: db,
    outbox: db.outbox,
    inbox: db.inbox,
    sagas: db.sagas,
    barriers: db.barriers,
    leadership: db.leadership('outbox'),
    other: db.leadership('projection/orders'),
    pool: db,
    async write(tx: MemoryTransaction, word: string) {
      await db.outbox.enqueue(tx, Written({ word }), { topic: word })
    },
    words: async () => (await db.outbox.admin.list()).map(({ topic }) => topic),
    clock,
    advance: (ms: number) => clock.advance(ms),
    close: async () => {},
  }
}

function run(title: string, suite: Suite): void {
  describe(title, () => {
    runSuite(suite)
  })
}

const name = 'memory'

describe('conformance in memory', () => {
  run('outbox store', outboxStoreSuite({ name, features: { receipts: true, refusesPool: true }, create }))
  const features = { owner: true, lease: true, shards: true, wakes: true, probes: true }
  run('outbox reader', outboxReaderSuite({ name, features, create }))
  run('outbox admin', outboxAdminSuite({ name, create }))
  run('inbox store', inboxStoreSuite({ name, features: { refusesPool: true }, create }))
  run('unit of work', unitOfWorkSuite({ name, create }))
  run('saga store', sagaStoreSuite({ name, create }))
  run('barrier', barrierSuite({ name, create }))
  run('leadership', leadershipSuite({ name, features: { scopes: true }, create }))
  const logged = async () => {
    const db = memory({ outbox: { log: true } })
    return { log: db.log, outbox: db.outbox as never, work: db as never, close: async () => {} }
  }
  run('log', logSuite({ name, features: { concurrent: true }, create: logged }))
  const scoped = async () => {
    const { db, ...made } = await create()
    return { ...made, leadership: made.other, other: db.leadership('projection/invoices') }
  }
  run('leadership of a scope', leadershipSuite({ name, features: { scopes: true }, create: scoped }))
})
