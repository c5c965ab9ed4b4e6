import { deepStrictEqual, ok, rejects, strictEqual } from 'node:assert/strict'
import { type Attributes, decodeData, event, local, Message, uuidv7 } from '../core/index.ts'
import { topicOf } from '../flow/index.ts'
import { same, sample } from './outbox-probe.ts'
import type { OutboxStoreProbe } from './outbox-store-suite.ts'
import type { StoreCase } from './store-probe.ts'

const every = Uint8Array.from({ length: 256 }, (_, i) => i)

function made(data: string | Uint8Array, attributes: Partial<Attributes> = {}): Message {
  return new Message({ id: uuidv7(), source: '/conformance', type: 'thing.done', ...attributes }, data)
}

/** Enqueues each and looks at what a relay is given, and at what a person is shown. */
async function through(probe: OutboxStoreProbe, events: readonly Message[]): Promise<Message[]> {
  await probe.enqueue(events)
  const relay = probe.relay()
  const arrived = await relay.receive(await relay.open(), events.length)
  for (const { message } of arrived) {
    const shown = await probe.outbox.admin.show(message.id)
    same(shown!.message, message)
  }
  return arrived.map(({ message }) => message)
}

async function unchanged(probe: OutboxStoreProbe, events: readonly Message[]): Promise<void> {
  const arrived = await through(probe, events)
  for (const [i, event] of events.entries()) same(arrived[i]!, event)
}

async function refused(enqueueing: Promise<unknown>, name: string): Promise<void> {
  await rejects(enqueueing, ({ code, message }) => code === 'INVALID_OPTION' && message.includes(`: ${name} contains`))
}

/** What of an event survives: everything. */
export const contentCases: readonly StoreCase<OutboxStoreProbe>[] = [
  {
    name: 'every attribute and extension survives, with its type',
    async run(probe) {
      const extensions = {
        traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
        text: 'ü €"\\\'{},NULL',
        empty: '',
        count: -7,
        yes: true,
        no: false,
        bytes: every,
        eventversion: 3,
      }
      await unchanged(probe, [
        made('{"n":1}', {
          subject: 'order 7 "quoted"',
          time: '2025-02-03T04:05:06.789012345+01:00',
          datacontenttype: 'application/vnd.thing+json; charset=utf-8',
          dataschema: 'https://example.com/schema?a=1&b={c}',
          extensions,
        }),
        made('{"n":1}'),
      ])
    },
  },
  {
    name: 'JSON text that was not made here survives byte by byte',
    async run(probe) {
      const texts = ['{ "b" : 1.0,\n "a":1e2, "a":2 }', '"text"', ' null ', '{"long":12345678901234567890.10}', '[]\n']
      await unchanged(
        probe,
        texts.map((text) => made(text)),
      )
    },
  },
  {
    name: 'bytes, text and no data at all survive, NUL characters too',
    async run(probe) {
      await unchanged(probe, [
        made(every, { datacontenttype: 'application/octet-stream' }),
        made('a\0b\nc', { datacontenttype: 'text/plain' }),
        made('"a\\u0000b"'),
        made(new TextEncoder().encode('{"utf8":"ü"}')),
        made(''),
        made(new Uint8Array(), { datacontenttype: 'application/octet-stream' }),
      ])
    },
  },
  {
    name: 'a typed value survives as the same value',
    async run(probe) {
      const Typed = event<unknown>('thing.typed')
      const values = [
        { text: 'ü €"\\\'', list: [1, -0.5, 1e21, null, true], nested: { deep: { empty: {} } }, none: null },
        { nul: 'a\0b', surrogates: '\ud83d\ude00', escaped: '\\u0000' },
        // Each on its own: one of them is enough to be kept in another way.
        '\ud800',
        '\udc00',
        '\udc00\ud800',
        '\\udc00',
        'text',
        '',
        42,
        null,
        false,
        [],
      ]
      const arrived = await through(
        probe,
        values.map((value) => Typed(value)),
      )
      deepStrictEqual(arrived.map(decodeData), values)
    },
  },
  {
    name: 'a NUL or half of a character in an attribute is refused by name, and the transaction goes on',
    async run(probe) {
      const odd = ['a\0b', 'a\ud800', '\udc00b']
      const attributes = ['id', 'source', 'type', 'subject', 'myextension']
      const options = ['key', 'topic', 'tenant'] as const
      await probe.work.withTransaction(async (tx) => {
        for (const text of odd) {
          for (const name of attributes) {
            const base = { id: uuidv7(), source: '/conformance', type: 'thing.done' }
            const own = name === 'myextension' ? { extensions: { [name]: text } } : { [name]: text }
            let message: Message
            try {
              message = new Message({ ...base, ...own }, {})
            } catch {
              // Nobody could make such an event in the first place.
              continue
            }
            await refused(probe.outbox.enqueue(tx, [message]), name)
          }
          for (const name of options) await refused(probe.outbox.enqueue(tx, [sample(1)], { [name]: text }), name)
          await refused(
            probe.outbox.enqueue(tx, [sample(1)], { aggregate: { type: 'order', id: text } }),
            'aggregate.id',
          )
        }
        await probe.outbox.enqueue(tx, [sample(2)])
      })
      strictEqual((await probe.entries()).length, 1)
    },
  },
  {
    name: 'a payload of a megabyte survives among small ones',
    async run(probe) {
      const large = JSON.stringify({ text: 'ü'.repeat(500_000) })
      const typed = new Message(
        { id: uuidv7(), source: '/conformance', type: 'thing.done' },
        { text: 'x'.repeat(50_000) },
      )
      const arrived = await through(probe, [
        made('{"n":1}'),
        made(large),
        typed,
        made(new Uint8Array(1_000_000).fill(7)),
      ])
      strictEqual(arrived[1]!.data, large)
      deepStrictEqual(decodeData(arrived[2]!), typed.data)
      strictEqual((arrived[3]!.data as Uint8Array).length, 1_000_000)
    },
  },
  {
    name: 'what belongs to the process stays in it, and the caller may change what it gave',
    async run(probe) {
      const span = local<string>('span')
      const bytes = Uint8Array.from([1, 2, 3])
      const data = { n: 1 }
      const [raw, typed] = [made(bytes, { datacontenttype: 'application/octet-stream' }), sample(1).withData(data)]
      raw.setLocal(span, 'mine')
      await probe.work.withTransaction(async (tx) => {
        await probe.outbox.enqueue(tx, [raw, typed])
        bytes[0] = 9
        data.n = 9
      })
      const relay = probe.relay()
      const [first, second] = await relay.receive(await relay.open(), 2)
      strictEqual(first!.message.local(span), undefined)
      deepStrictEqual([...(first!.message.data as Uint8Array)], [1, 2, 3])
      deepStrictEqual(decodeData(second!.message), { n: 1 })
    },
  },
  {
    name: 'key, tenant and topic are the event’s own, or what the call says for all its events',
    async run(probe) {
      const [own, other, none] = [
        sample(1, { key: 'a', tenant: 't1' }),
        sample(2, { key: 'b', tenant: 't2' }),
        sample(3),
      ]
      await probe.enqueue([own, none])
      await probe.enqueue([other], { key: 'ü "c"', tenant: 't3', topic: 'billing.events' })
      const relay = probe.relay()
      const arrived = await relay.receive(await relay.open(), 3)
      const seen = arrived.map(({ key, message }) => [key, message.key, message.tenant, topicOf(message)])
      deepStrictEqual(seen, [
        ['a', 'a', 't1', 'thing.done'],
        [undefined, undefined, undefined, 'thing.done'],
        ['ü "c"', 'ü "c"', 't3', 'billing.events'],
      ])
      const entries = await Promise.all([own, none, other].map((event) => probe.entry(event)))
      deepStrictEqual(
        entries.map(({ key, tenant, topic }) => [key, tenant, topic]),
        [
          ['a', 't1', 'thing.done'],
          [undefined, '', 'thing.done'],
          ['ü "c"', 't3', 'billing.events'],
        ],
      )
    },
  },
  {
    name: 'the version of an event is kept',
    async run(probe) {
      const Grown = event<{ n: number }>('thing.grown').version<2, { m: number }>(2, undefined, ({ n }) => ({ m: n }))
      const [arrived] = await through(probe, [Grown({ m: 1 })])
      strictEqual(arrived!.version, 2)
      strictEqual((await probe.entry(arrived!)).version, 2)
    },
  },
  {
    name: 'an event for later is scheduled, and says for when; an aggregate may be named',
    async run(probe) {
      const event = sample(1)
      const availableAt = new Date(probe.time.now() + 3_600_000)
      await probe.enqueue([event], { availableAt, aggregate: { type: 'order', id: '7' } })
      const entry = await probe.entry(event)
      strictEqual(entry.state, 'scheduled')
      ok(entry.availableAt !== undefined && Math.abs(entry.availableAt.getTime() - availableAt.getTime()) < 2)
    },
  },
]
