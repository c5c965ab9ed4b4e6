import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { outboxSource, Reject } from '../../src/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { number, outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const READERS = ['owner', 'lease'] as const

/** So that tries in vain take no time. */
const outage = { min: 1, max: 5, jitter: 0 }

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
    const tally = await t.relay({ reader, outage }).runOnce()
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
    const relay = t.relay({ reader, outage, poll: '5ms', maxPoll: '5ms', grace: '100ms' })
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

test.each(['P0001', '23514', 'nothing'])(
  'owner: a row that cannot be put aside behind a dead one of its key (%s) stops nobody else, and is not overtaken',
  async (code) => {
    t.sink.fail({ where: (message) => number(message) === 1, error: new Reject('no') })
    await t.enqueue(Placed({ n: 1 }, { key: 'a' }))
    await untilEmpty(t.relay())
    await t.enqueue([Placed({ n: 2 }, { key: 'a' }), Placed({ n: 3 }), Placed({ n: 4 }, { key: 'b' })])
    if (code === 'nothing') {
      await t.pool.query(`
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW WHEN (OLD.payload->>'n' = '2') EXECUTE FUNCTION refuse()`)
    } else await refuse(`OLD.payload->>'n' = '2'`, code)
    const clock = new FakeClock()
    const source = outboxSource(t.outbox, { reader: 'owner', wake: false, lease: '1h', clock })
    const session = (await source.open(new AbortController().signal))!
    const telemetry = recordTelemetry(['settlement.refused'])
    const take = async () => {
      const taken = await session.take({ count: 100, bytes: 1e9 }, session.lost)
      await session.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))
      return taken.map(({ message }) => number(message))
    }
    try {
      expect(await take()).toEqual([3, 4])
      expect(await take()).toEqual([])
      expect(telemetry.of('settlement.refused')).toMatchObject([{ settlement: 'release', dead: false }])
      // What blocked it is gone, and it is not tried again yet: what is behind it waits with it.
      await t.pool.query(`DELETE FROM outbox WHERE payload->>'n' = '1'`)
      await t.pool.query('DROP TRIGGER refuse ON outbox')
      await t.enqueue([Placed({ n: 5 }, { key: 'a' }), Placed({ n: 6 })])
      await clock.advance(1001)
      expect(await take()).toEqual([6])
      await clock.advance(60_000)
      expect(await take()).toEqual([2, 5])
    } finally {
      telemetry.stop()
      await session.close()
    }
  },
)

test('owner: a failure that cannot be noted stops its key and no other, until it can be', async () => {
  await refuse(`OLD.payload->>'n' = '0'`, 'P0001')
  await t.enqueue(Array.from({ length: 40 }, (_, n) => Placed({ n }, { key: 'a' })))
  await t.enqueue([Placed({ n: 1 }, { key: 'b' }), Placed({ n: 2 }, { key: 'b' })])
  t.sink.fail({ where: (message) => number(message) === 0, times: 1 })
  // Fewer at once than wait behind the one that failed.
  const relay = t.relay({ batch: 5, maxBatch: 5, outage, poll: '5ms', maxPoll: '5ms' })
  await relay.start()
  await eventually('the other key to be published', async () => (await t.states())['published'] === 2)
  expect(t.arrivals()).toEqual({ b: [1, 2] })
  await t.pool.query('DROP TRIGGER refuse ON outbox')
  await eventually('all to be published', async () => (await t.states())['published'] === 42)
  expect(t.arrivals()['a']).toEqual(Array.from({ length: 40 }, (_, n) => n))
})

test.each(READERS)('%s: a row that can neither be read nor be called dead costs the others nothing', async (reader) => {
  await t.enqueue(Array.from({ length: 10 }, (_, n) => Placed({ n })))
  await t.pool.query(`UPDATE outbox SET attributes = 'null' WHERE payload->>'n' = '7'`)
  await refuse(`OLD.payload->>'n' = '7' AND NEW.state <> 'leased'`, 'P0001')
  const telemetry = recordTelemetry(['settlement.refused'])
  const relay = t.relay({ reader, outage, poll: '5ms', maxPoll: '5ms' })
  await relay.start()
  await eventually('the others to be published', async () => (await t.states())['published'] === 9)
  await relay.stop()
  telemetry.stop()
  expect(telemetry.of('settlement.refused')).toMatchObject([{ settlement: 'dead', dead: false }])
  const { rows } = await t.pool.query('SELECT count(*)::int AS n FROM outbox WHERE attempts > 0')
  expect(rows).toEqual([{ n: 0 }])
})

describe('lease: one event whose settlement is refused', () => {
  const REFUSED = `OLD.payload->>'n' = '7' AND NEW.state <> 'leased'`
  const states = async () => {
    const { rows } = await t.pool.query(`SELECT payload->>'n' AS n, state, attempts FROM outbox ORDER BY sequence`)
    return rows.map(({ n, state, attempts }) => `${n} ${state} ${attempts}`)
  }

  test.each(['P0001', '23514'])(
    'and which cannot be claimed either (%s) costs the others nothing, and is tried again',
    async (code) => {
      await refuse(`OLD.payload->>'n' = '7'`, code)
      await t.enqueue(Array.from({ length: 20 }, (_, n) => Placed({ n })))
      await t.enqueue(
        [20, 21].map((n) => Placed({ n })),
        { availableAt: new Date(Date.now() - 1000) },
      )
      const clock = new FakeClock()
      const source = outboxSource(t.outbox, { reader: 'lease', wake: false, lease: '1h', clock })
      const session = (await source.open(new AbortController().signal))!
      const telemetry = recordTelemetry(['settlement.refused'])
      const take = async () => {
        const numbers: number[] = []
        for (;;) {
          const taken = await session.take({ count: 10, bytes: 1e6 }, session.lost)
          if (taken.length === 0) return numbers.sort((a, b) => a - b)
          numbers.push(...taken.map(({ message }) => number(message)))
          await session.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))
        }
      }
      try {
        expect(await take()).toEqual([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21])
        expect(telemetry.of('settlement.refused')).toMatchObject([
          { type: 'order.placed', dead: false, error: { code } },
        ])
        await t.pool.query('DROP TRIGGER refuse ON outbox')
        expect(await take()).toEqual([])
        await clock.advance(60_000)
        expect(await take()).toEqual([7])
      } finally {
        telemetry.stop()
        await session.close()
      }
    },
  )

  test('keeps nobody from what others let run out', async () => {
    await refuse(REFUSED, 'P0001')
    await t.enqueue(Placed({ n: 7 }))
    const session = (await outboxSource(t.outbox, { reader: 'lease' }).open(new AbortController().signal))!
    try {
      const demand = { count: 10, bytes: 1e6 }
      const taken = await session.take(demand, session.lost)
      await expect(session.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))).rejects.toThrow('no')
      await t.pool.query(`INSERT INTO outbox (event_id, topic, source, event_type, payload, state, lease, available_at)
        SELECT gen_random_uuid(), 't', '/t', 't', '{"n": 8}', 'leased', gen_random_uuid(), now() - interval '1 minute'`)
      expect((await session.take(demand, session.lost)).map(({ message }) => number(message))).toEqual([8])
    } finally {
      await session.close()
    }
  })

  test('does not keep the others from being given back at a stop', async () => {
    await refuse(REFUSED, 'P0001')
    await t.enqueue([6, 7, 8, 9].map((n) => Placed({ n })))
    const session = (await outboxSource(t.outbox, { reader: 'lease' }).open(new AbortController().signal))!
    await session.take({ count: 4, bytes: 1e6 }, session.lost)
    await session.close()
    expect(await states()).toEqual(['6 ready 0', '7 leased 0', '8 ready 0', '9 ready 0'])
  })
})
