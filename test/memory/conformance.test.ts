import { describe, test } from 'vitest'
import { memory } from '../../src/memory/index.ts'
import { FakeClock, outboxReaderSuite, outboxStoreSuite, type Suite } from '../../src/testing/index.ts'

async function create() {
  const clock = new FakeClock()
  const db = memory({ clock })
  return {
    work: db,
    outbox: db.outbox,
    inbox: db.inbox,
    leadership: db.outbox.leadership,
    pool: db,
    clock,
    advance: (ms: number) => clock.advance(ms),
    close: async () => {},
  }
}

function run(title: string, suite: Suite): void {
  describe(title, () => {
    for (const { name, skip, run } of suite) test.skipIf(skip !== undefined)(name, run)
  })
}

run(
  'outbox store in memory',
  outboxStoreSuite({ name: 'memory', features: { receipts: true, refusesPool: true }, create }),
)
run(
  'outbox reader in memory',
  outboxReaderSuite({
    name: 'memory',
    features: { owner: true, lease: true, shards: true, wakes: true, notes: true },
    create,
  }),
)
