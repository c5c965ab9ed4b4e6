import { afterEach, beforeEach, expect, test } from 'vitest'
import { recordTelemetry } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const READERS = ['owner', 'lease'] as const

/** So that tries in vain take no time. */
const breaker = { min: 1, max: 5, jitter: 0 }

/** Any UPDATE of the outbox for which `when` holds is refused with this SQLSTATE. */
async function refuse(when: string, code: string): Promise<void> {
  await t.pool.query(`
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN IF ${when} THEN RAISE EXCEPTION 'no' USING ERRCODE = '${code}'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
}

test.each(READERS)(
  '%s: a row whose settlement is refused for what it says is dead, and the others are published',
  async (reader) => {
    await refuse(`NEW.last_error LIKE '%bad%'`, '22021')
    await t.enqueue(Array.from({ length: 40 }, (_, n) => Placed({ n })))
    t.sink.fail({ where: (message) => number(message) === 7, error: new Error('bad') })
    const telemetry = recordTelemetry(['settlement.refused', 'message.dead'])
    const tally = await t.relay({ reader, breaker }).runOnce()
    telemetry.stop()
    expect(tally).toMatchObject({ taken: 40, done: 39, dead: 1 })
    expect(await t.states()).toEqual({ published: 39, dead: 1 })
    const { rows } = await t.pool.query(`SELECT last_error FROM outbox WHERE state = 'dead'`)
    expect(rows).toEqual([{ last_error: 'its settlement was refused: 22021' }])
    expect(telemetry.of('settlement.refused')).toMatchObject([
      { settlement: 'retry', dead: true, error: { code: '22021' } },
    ])
    expect(telemetry.of('message.dead')).toHaveLength(1)
  },
)

test.each(READERS.flatMap((reader) => ['23514', 'P0001'].map((code) => [reader, code] as const)))(
  '%s: a row that cannot be settled at all (%s) is put aside, and the others are published',
  async (reader, code) => {
    // Being claimed is an update too; settling is refused whatever it says.
    await refuse(`OLD.payload->>'n' = '7' AND NEW.state <> 'leased'`, code)
    await t.enqueue(Array.from({ length: 40 }, (_, n) => Placed({ n })))
    const telemetry = recordTelemetry(['settlement.refused'])
    const relay = t.relay({ reader, breaker, poll: '5ms', maxPoll: '5ms', grace: '100ms' })
    const published = (count: number) =>
      eventually(`${count} to be published`, async () => (await t.states())['published'] === count)
    await relay.start()
    await published(39)
    await t.enqueue(Placed({ n: 41 }))
    await published(40)
    await relay.stop()
    telemetry.stop()
    expect(telemetry.of('settlement.refused')).toMatchObject([{ settlement: 'done', dead: false, error: { code } }])
    expect(
      t.sink.messages.filter((message) => number(message) === 7),
      'not published again',
    ).toHaveLength(1)
  },
)
