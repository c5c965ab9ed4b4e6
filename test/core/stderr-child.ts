import { event } from '../../src/core/index.ts'
import { Reject, Relay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { logTo } from '../../src/observability/index.ts'

/** A relay whose destination refuses an event; with a logger or without. */
const db = memory()
if (process.argv[2] === 'logged') logTo(() => {})
await db.withTransaction((tx) => db.outbox.enqueue(tx, [event('card.paid')({ card: '4111-1111' })]))
const to = async () => {
  throw new Reject('card 4111-1111 \u001b[31m is refused')
}
const relay = new Relay({ from: db.outbox, to: to as never })
await relay.start()
while ((await db.outbox.admin.list({ states: ['dead'] })).length === 0)
  await new Promise((resolve) => setTimeout(resolve, 5))
await relay.stop()
