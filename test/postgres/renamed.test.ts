import { afterEach, beforeEach, expect, test } from 'vitest'
import { recordTelemetry } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox
beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

test.each(['owner', 'lease'] as const)(
  'a table that is gone under a relay is named, with what to do: %s',
  async (reader) => {
    const recorded = recordTelemetry(['flow.take_failed'])
    await t.relay({ reader, poll: 20 }).start()
    await t.enqueue(Placed({ n: 1 }))
    await t.sink.arrived(1)
    await t.pool.query('ALTER TABLE outbox RENAME TO outbox_old')
    const failed = () => recorded.of('flow.take_failed')
    await eventually('a take to fail', () => failed().length > 0)
    recorded.stop()
    expect(failed()[0]!.error).toMatchObject({
      code: 'NOT_MIGRATED',
      message: expect.stringContaining('table outbox does not exist; check the name, then run db.migrate()'),
    })
    await t.pool.query('ALTER TABLE outbox_old RENAME TO outbox')
    await t.enqueue(Placed({ n: 2 }))
    await t.sink.arrived(2)
  },
)
