import { afterEach, beforeEach, expect, test } from 'vitest'
import { recordTelemetry } from '../../src/testing/index.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const READERS = ['owner', 'lease'] as const

/** Any UPDATE of the outbox for which `when` holds is refused. */
async function refuse(when: string): Promise<void> {
  await t.pool.query(`
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN IF ${when} THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
}

test.each(READERS)(
  '%s: a row whose settlement is refused for what it says is dead, and the others are published',
  async (reader) => {
    await refuse(`NEW.last_error LIKE '%bad%'`)
    await t.enqueue(Array.from({ length: 40 }, (_, n) => Placed({ n })))
    t.sink.fail({ where: (message) => number(message) === 7, error: new Error('bad') })
    const telemetry = recordTelemetry(['settlement.refused', 'message.dead'])
    const tally = await t.relay({ reader }).runOnce()
    telemetry.stop()
    expect(tally).toMatchObject({ taken: 40, done: 39, dead: 1 })
    expect(await t.states()).toEqual({ published: 39, dead: 1 })
    const { rows } = await t.pool.query(`SELECT last_error FROM outbox WHERE state = 'dead'`)
    expect(rows).toEqual([{ last_error: 'its settlement was refused: P0001' }])
    expect(telemetry.of('settlement.refused')).toMatchObject([
      { settlement: 'retry', dead: true, error: { code: 'P0001' } },
    ])
    expect(telemetry.of('message.dead')).toHaveLength(1)
  },
)

test.each(READERS)(
  '%s: a row that cannot be settled at all is put aside, and the others are published',
  async (reader) => {
    // Being claimed is an update too; settling is refused whatever it says.
    await refuse(`OLD.payload->>'n' = '7' AND NEW.state <> 'leased'`)
    await t.enqueue(Array.from({ length: 40 }, (_, n) => Placed({ n })))
    const telemetry = recordTelemetry(['settlement.refused'])
    const relay = t.relay({ reader })
    await relay.runOnce()
    expect((await t.states())['published']).toBe(39)
    expect(telemetry.of('settlement.refused')).toMatchObject([{ settlement: 'done', dead: false }])
    expect(t.sink.messages.filter((message) => number(message) === 7)).toHaveLength(1)
    await t.enqueue(Placed({ n: 41 }))
    await relay.runOnce()
    telemetry.stop()
    expect((await t.states())['published']).toBe(40)
    expect(
      t.sink.messages.filter((message) => number(message) === 7),
      'not published again',
    ).toHaveLength(1)
  },
)
