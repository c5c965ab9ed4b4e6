import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { Message, Reject } from '../../src/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { number, outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

let t: TestOutbox

beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const at = (n: number, key?: string) => Placed({ n }, key === undefined ? {} : { key })

describe('owner reader', () => {
  test('publishes what was committed, once, and keeps it as published', async () => {
    await t.enqueue([at(1), at(2), at(3)])
    const relay = t.relay()
    expect(await untilEmpty(relay)).toBe(3)
    expect(t.sink.messages.map(number)).toEqual([1, 2, 3])
    expect(await t.states()).toEqual({ published: 3 })
    expect(await untilEmpty(relay)).toBe(0)
  })

  test('with deleteOnPublish nothing is left', async () => {
    await t.enqueue([at(1), at(2, 'a'), at(3, 'a')])
    t.sink.fail({ where: (message) => number(message) === 2, times: 1 })
    expect(await untilEmpty(t.relay({ deleteOnPublish: true }))).toBe(3)
    expect(await t.states()).toEqual({})
  })

  test('a rolled-back transaction leaves nothing to publish', async () => {
    await expect(
      t.db.withTransaction(async (tx) => {
        await t.outbox.enqueue(tx, at(1))
        throw new Error('no')
      }),
    ).rejects.toThrow('no')
    expect(await untilEmpty(t.relay())).toBe(0)
  })

  test('a key waits for its failed event, in order; other keys go on', async () => {
    await t.enqueue([at(1, 'a'), at(2, 'a'), at(1, 'b'), at(3, 'a'), at(2, 'b')])
    t.sink.fail({ where: (message) => message.key === 'a' && number(message) === 1, times: 3 })
    const relay = t.relay()
    await untilEmpty(relay)
    expect(t.arrivals()).toEqual({ a: [1, 2, 3], b: [1, 2] })
    expect(t.sink.messages.map((message) => message.key).slice(0, 2)).toEqual(['b', 'b'])
    expect(await t.states()).toEqual({ published: 5 })
  })

  test('what is enqueued while its key waits joins the end of the key', async () => {
    await t.enqueue([at(1, 'a'), at(2, 'a')])
    t.sink.fail({ where: (message) => number(message) === 1, times: 2 })
    const relay = t.relay({ retry: { backoff: { min: '1h', jitter: 0 } } })
    await relay.runOnce()
    await t.enqueue([at(3, 'a')])
    await untilEmpty(relay)
    expect(t.sink.messages).toHaveLength(0)
    expect(await t.states()).toEqual({ retrying: 1, held: 2 })
    await t.pool.query(`UPDATE outbox SET available_at = now() WHERE state = 'retrying'`)
    await relay.stop()
    await untilEmpty(t.relay())
    expect(t.arrivals()).toEqual({ a: [1, 2, 3] })
  })

  test('a dead event blocks its key until it is discarded, or re-armed in its place', async () => {
    await t.enqueue([at(1, 'a'), at(2, 'a'), at(3, 'a'), at(1, 'b')])
    t.sink.reject({ where: (message) => message.key === 'a' && number(message) === 1, times: 1 })
    const relay = t.relay()
    await untilEmpty(relay)
    expect(t.arrivals()).toEqual({ b: [1] })
    expect(await t.states()).toEqual({ dead: 1, held: 2, published: 1 })
    expect(await t.outbox.admin.rearm({ states: ['dead'] })).toBe(1)
    await relay.stop()
    await untilEmpty(t.relay())
    expect(t.arrivals()).toEqual({ a: [1, 2, 3], b: [1] })
  })

  test('discarding the dead event lets its key go on', async () => {
    await t.enqueue([at(1, 'a'), at(2, 'a'), at(3, 'a')])
    t.sink.reject({ where: (message) => number(message) === 1 })
    const relay = t.relay()
    await untilEmpty(relay)
    await t.outbox.admin.discardDead({ states: ['dead'] }, { by: 'test', note: 'not wanted' })
    await relay.stop()
    await untilEmpty(t.relay())
    expect(t.arrivals()).toEqual({ a: [2, 3] })
  })

  test('with deadKey: continue a key goes on without its dead event', async () => {
    await t.enqueue([at(1, 'a'), at(2, 'a'), at(3, 'a')])
    t.sink.fail({ where: (message) => number(message) === 1 })
    await untilEmpty(t.relay({ retry: { deadKey: 'continue', attempts: 3 } }))
    expect(t.arrivals()).toEqual({ a: [2, 3] })
    expect(await t.states()).toEqual({ dead: 1, published: 2 })
  })

  test('at the attempt limit an event is dead, with a reason that does not show its payload', async () => {
    await t.enqueue(Placed({ n: 1 }))
    t.sink.fail({
      error: new Error('refused {"n":1,"secret":"hunter2-hunter2-hunter2-hunter2-hunter2-hunter2-hunter2-hunter2"}'),
    })
    await untilEmpty(t.relay({ retry: { attempts: 4 } }))
    const { rows } = await t.pool.query('SELECT state, attempts, last_error FROM outbox')
    expect(rows).toMatchObject([{ state: 'dead', attempts: 4 }])
    expect(rows[0].last_error).not.toContain('hunter2')
  })

  test('a Reject kills at once', async () => {
    await t.enqueue(at(1))
    t.sink.reject({ error: new Reject('no such customer') })
    await untilEmpty(t.relay())
    const { rows } = await t.pool.query('SELECT state, attempts, last_error FROM outbox')
    expect(rows).toMatchObject([{ state: 'dead', attempts: 1 }])
    expect(rows[0].last_error).toContain('no such customer')
  })

  test('a row that commits late, below what was read already, is found', async () => {
    const late = await t.pool.connect()
    await late.query('BEGIN')
    await t.outbox.enqueue(late, at(0))
    const relay = t.relay()
    for (let n = 1; n <= 5; n++) {
      await t.enqueue(at(n))
      await relay.runOnce()
    }
    expect(t.sink.messages.map(number)).toEqual([1, 2, 3, 4, 5])
    await late.query('COMMIT')
    late.release()
    await untilEmpty(relay)
    expect(t.sink.messages.map(number)).toEqual([1, 2, 3, 4, 5, 0])
  })

  test('a scheduled event comes when it is due and joins its key then', async () => {
    await t.enqueue(at(1, 'a'), { availableAt: new Date(Date.now() + 3_600_000) })
    await t.enqueue(at(2, 'a'))
    const relay = t.relay()
    await untilEmpty(relay)
    expect(t.arrivals()).toEqual({ a: [2] })
    await t.pool.query(`UPDATE outbox SET available_at = now() WHERE state = 'scheduled'`)
    await relay.stop()
    await untilEmpty(t.relay())
    expect(t.arrivals()).toEqual({ a: [2, 1] })
  })

  test('everything of a message survives: attributes, extensions, text and bytes', async () => {
    const foreign = new Message(
      {
        id: 'order/7 ü',
        source: 'https://elsewhere.example/x',
        type: 'foreign.thing',
        subject: 's',
        time: '2025-02-03T04:05:06.789+01:00',
        datacontenttype: 'application/vnd.thing',
        dataschema: 'https://schemas.example/1',
        extensions: {
          traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
          flag: true,
          count: 7,
          bin: new Uint8Array([0, 255]),
        },
      },
      new Uint8Array([1, 0, 255]),
    )
    const raw = new Message(
      { id: 'x', source: '/s', type: 'raw.json', datacontenttype: 'application/json' },
      '{"b":1,"a":2,"b":3}',
    )
    const nul = Placed({ n: 1, text: 'a\u0000b\ud800c' } as never, { key: 'k', tenant: 'acme' })
    await t.enqueue([foreign, raw, nul], {})
    await untilEmpty(t.relay())
    const [a, b, c] = t.sink.messages
    expect({ ...a!.attributes() }).toEqual({
      ...foreign.attributes(),
      extensions: { ...foreign.extensions, eventversion: 1 },
    })
    expect(a!.data).toEqual(new Uint8Array([1, 0, 255]))
    expect(b!.data).toBe('{"b":1,"a":2,"b":3}')
    expect(c!.key).toBe('k')
    expect(c!.tenant).toBe('acme')
    expect(JSON.parse(c!.data as string)).toEqual({ n: 1, text: 'a\u0000b\ud800c' })
  })

  test('a payload of 10 MB goes through, and many large ones stay within the byte limit', async () => {
    const big = (n: number) => Placed({ n, text: 'x'.repeat(1_000_000) } as never)
    await t.enqueue(Placed({ n: 0, text: String(Math.random()).repeat(600_000) } as never))
    for (let n = 1; n <= 5; n++) await t.enqueue(big(n))
    await untilEmpty(t.relay())
    expect(t.sink.messages.map(number)).toEqual([0, 1, 2, 3, 4, 5])
  })

  test('an outage spends no attempts', async () => {
    await t.enqueue([at(1), at(2, 'a'), at(3, 'a')])
    const up = t.sink.down()
    const relay = t.relay()
    for (let i = 0; i < 30; i++) await relay.runOnce()
    const { rows } = await t.pool.query('SELECT sum(attempts)::int AS attempts FROM outbox')
    expect(rows[0].attempts).toBe(0)
    up()
    await untilEmpty(relay)
    expect(await t.states()).toEqual({ published: 3 })
  })

  test('started, it is woken by a commit, and stops when told', async () => {
    const relay = t.relay({ poll: '1h', maxPoll: '1h' })
    const telemetry = recordTelemetry(['relay.reader', 'flow.opened'])
    await relay.start()
    await telemetry.next('flow.opened', undefined, 30_000)
    expect(telemetry.of('relay.reader')).toMatchObject([{ reader: 'owner', shards: 1 }])
    for (let n = 1; n <= 20; n++) {
      await t.enqueue(at(n))
      await t.sink.arrived(n)
    }
    await relay.stop()
    telemetry.stop()
    const { rows } = await t.pool.query(`SELECT holder FROM outbox_terms WHERE shard = 0`)
    expect(rows).toEqual([{ holder: '' }])
  })

  test('a second relay waits, and takes over when the first stops', async () => {
    const first = t.relay({ poll: '50ms' })
    const second = t.relay({ poll: '50ms' })
    await first.start()
    await t.enqueue(at(1))
    await t.sink.arrived(1)
    await second.start()
    await first.stop()
    await t.enqueue(at(2))
    await t.sink.arrived(2)
    expect(t.sink.messages.map(number)).toEqual([1, 2])
  })
})
