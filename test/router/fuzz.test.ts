import fc from 'fast-check'
import { expect, it } from 'vitest'
import { z } from 'zod'
import { fromBinary, fromStructured } from '../../src/cloudevents/index.ts'
import { event, isRaw, Message, type RawMessage, WaybillError } from '../../src/core/index.ts'
import { deadLetter, Router } from '../../src/router/index.ts'
import { collector, FakeClock, scriptedSource } from '../../src/testing/index.ts'

const text = fc.oneof(
  fc.constantFrom('{"n":1}', '{"m":2}', '{"n":1,"m":2}'),
  fc.string({ unit: 'binary' }),
  fc.json(),
  fc.constantFrom('', 'null', '{"n":1}', '{"n":"x"}', '[', '{"__proto__":{"n":1}}', '\ud800', '1e999', '{"n":1,"n":2}'),
)
const bytes = fc.uint8Array({ maxLength: 60 })
const type = fc.constantFrom('known', 'async', 'throws', 'never.seen', '__proto__', 'toString', '')
const version = fc.constantFrom<unknown>(undefined, 1, 2, 3, 99, -1, 'x', '2', Number.MAX_SAFE_INTEGER, true)
const contentType = fc.constantFrom(
  undefined,
  'application/json',
  'text/plain',
  'image/png',
  ';;',
  'application/x+json; charset=latin1',
)

/** Bytes of a structured event, more or less. */
const structured = fc
  .record(
    {
      specversion: fc.constantFrom('1.0', '0.3', 1),
      id: fc.oneof(fc.string({ minLength: 1 }), fc.integer()),
      source: fc.constantFrom('/s', '', 5),
      type,
      time: fc.constantFrom('2025-01-01T00:00:00Z', 'yesterday'),
      eventversion: version,
      partitionkey: fc.oneof(fc.string(), fc.boolean()),
      data: fc.oneof(fc.jsonValue(), fc.constant({ n: 1 })),
      data_base64: fc.string(),
    },
    { requiredKeys: [] },
  )
  .map((value) => JSON.stringify(value))

const headers = fc.dictionary(
  fc.constantFrom('ce-id', 'ce-source', 'ce-type', 'ce-specversion', 'ce-time', 'content-type', 'ce-eventversion', 'x'),
  fc.string(),
)

/** A message as a broker might hand it over: through a decoder, or made from attributes as they came. */
const incoming: fc.Arbitrary<() => Message> = fc.oneof(
  { arbitrary: made(), weight: 3 },
  fc.oneof(structured, text).map((body) => () => fromStructured(body)),
  bytes.map((body) => () => fromStructured(body)),
  fc.tuple(headers, bytes).map(
    ([given, body]) =>
      () =>
        fromBinary({ 'ce-specversion': '1.0', ...given }, body),
  ),
)

function made(): fc.Arbitrary<() => Message> {
  return fc.tuple(type, version, contentType, fc.oneof(text, bytes), fc.string()).map(
    ([type, eventversion, datacontenttype, data, partitionkey]) =>
      () =>
        new Message(
          {
            id: 'x',
            source: '/s',
            type,
            datacontenttype,
            extensions: {
              partitionkey,
              ...(eventversion === undefined ? {} : { eventversion: eventversion as number }),
            },
          },
          data,
        ),
  )
}

it('10,000 fuzzed raw messages: each is handled, rejected or dead-lettered, and the process goes on', async () => {
  const given = fc.sample(incoming, { numRuns: 10_000, seed: 1 })
  const messages: RawMessage[] = []
  const codes = new Set<string>()
  let refused = 0
  for (const [i, make] of given.entries()) {
    try {
      const message = make()
      expect(isRaw(message) || message.form === 'value').toBe(true)
      messages.push(message.with({ id: `m${i}` }) as RawMessage)
    } catch (error) {
      // One clear error of our own, which a source takes for a dead letter.
      expect(error).toBeInstanceOf(WaybillError)
      codes.add((error as WaybillError).code)
      refused++
    }
  }
  expect([...codes].every((code) => ['MALFORMED_MESSAGE', 'INVALID_PAYLOAD'].includes(code))).toBe(true)

  const place = collector()
  const handled: string[] = []
  const Known = event('known', z.object({ n: z.number() })).version(2, z.object({ m: z.number() }), ({ n }) => ({
    m: n,
  }))
  const Async = event(
    'async',
    z.object({ n: z.number() }).refine(async () => true),
  )
  const router = new Router('fuzz', { unknown: 'dead-letter' })
    .use(deadLetter({ to: place }))
    .on(Known, ({ id, data }) => {
      expect(typeof data.m).toBe('number')
      handled.push(id)
    })
    .on(Async, async ({ id }) => void handled.push(id))
    .on(event('throws'), ({ data }) => {
      throw data
    })
  const source = scriptedSource([messages], { features: { redelivers: true } })
  const consumer = router.consume(source, { clock: new FakeClock(), retry: { attempts: 1 }, buffer: { count: 20_000 } })
  await consumer.runOnce()
  await consumer.stop()

  expect(refused + messages.length).toBe(10_000)
  expect(messages.length).toBeGreaterThan(3000)
  expect(handled.length).toBeGreaterThan(50)
  expect(source.settlements).toHaveLength(messages.length)
  const dead = source.settlements
    .filter(({ settlement }) => settlement.kind === 'dead')
    .map(({ message }) => message.id)
  const letters = place.messages.map(({ id }) => id)
  const all = [...handled, ...letters, ...dead]
  expect(new Set(all).size).toBe(all.length)
  expect(new Set(all)).toEqual(new Set(messages.map(({ id }) => id)))
})
