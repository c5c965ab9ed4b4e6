import fc from 'fast-check'
import { expect, test } from 'vitest'
import { z } from 'zod'
import { fromBatch, fromBinary, fromStructured, toBatch, toBinary, toStructured } from '../../src/cloudevents/index.ts'
import { decodeData, event, Message, type RawMessage, WaybillError } from '../../src/core/index.ts'
import { message } from './arbitrary.ts'

const RUNS = 10_000
const OrderPlaced = event('order.placed', z.object({ orderId: z.string() })).version(
  2,
  z.object({ orderId: z.string(), total: z.number() }),
  (v1) => ({ ...v1, total: 0 }),
)

/** What `read` gives is a message that can be decoded and written again; all else is an error of ours. */
function survives(read: () => RawMessage | RawMessage[]): 'read' | 'refused' {
  const ours = (act: () => unknown): boolean => {
    try {
      act()
      return true
    } catch (error) {
      if (!(error instanceof WaybillError)) throw error
      return false
    }
  }
  const taken: RawMessage[] = []
  if (!ours(() => taken.push(...[read()].flat()))) return 'refused'
  for (const one of taken) {
    expect(one).toBeInstanceOf(Message)
    ours(() => decodeData(one))
    ours(() => OrderPlaced.decode(one.with({ type: 'order.placed' })))
    // Whatever was accepted can be passed on.
    fromStructured(toStructured(one))
    const { headers, body } = toBinary(one)
    fromBinary(headers, body)
  }
  return 'read'
}

/** Text that was an event once: characters lost, changed, doubled, pieces of JSON put in between. */
const damage = fc.array(
  fc.record({
    at: fc.nat(),
    cut: fc.nat(3),
    put: fc.constantFrom(
      '',
      '"',
      '{',
      '}',
      '[',
      ']',
      ',',
      ':',
      '\\',
      'null',
      '1.5',
      '"__proto__":1,',
      '"data":1,',
      '\u0000',
      '\ud800',
      'é',
    ),
  }),
  { maxLength: 4 },
)
type Damage = { at: number; cut: number; put: string }[]

function damaged(text: string, faults: Damage): string {
  return faults.reduce((all, { at, cut, put }) => {
    const where = at % (all.length + 1)
    return all.slice(0, where) + put + all.slice(where + cut)
  }, text)
}

const member = fc.oneof(
  fc.constantFrom('specversion', 'id', 'source', 'type', 'subject', 'time', 'datacontenttype', 'data', 'data_base64'),
  fc.constantFrom('__proto__', 'constructor', 'tenantid', 'eventversion', 'partitionkey'),
  fc.string(),
)
const likely = fc.oneof(
  fc.constantFrom('1.0', '2026-01-01T00:00:00Z', 'AP8=', 'application/json', 'text/plain', 'order.placed'),
  fc.jsonValue(),
)
/** Right and wrong members at random, as text, since objects cannot hold `__proto__`. */
const almost = fc
  .array(fc.tuple(member, likely))
  .map(
    (members) =>
      `{"specversion":"1.0","id":"1","source":"/","type":"order.placed"${members.map(([name, value]) => `,${JSON.stringify(name)}:${JSON.stringify(value)}`).join('')}}`,
  )

const structured = fc.oneof(
  fc.tuple(message, damage).map(([one, faults]) => damaged(toStructured(one), faults)),
  almost,
  fc.tuple(almost, damage).map(([text, faults]) => damaged(text, faults)),
  fc.string({ unit: 'binary' }),
  fc.json(),
)

test(`${RUNS} structured inputs: each a message or an error of ours`, () => {
  const seen = { read: 0, refused: 0 }
  const input = fc.oneof(
    structured,
    structured.map((text) => Buffer.from(text)),
    fc.uint8Array(),
  )
  fc.assert(
    fc.property(input, (given) => void seen[survives(() => fromStructured(given))]++),
    { numRuns: RUNS },
  )
  // Otherwise one side of the code was hardly tried.
  expect(Math.min(seen.read, seen.refused)).toBeGreaterThan(RUNS / 20)
})

test(`${RUNS / 10} batches: each messages or an error of ours`, () => {
  const batch = fc.oneof(
    fc.tuple(fc.array(message, { maxLength: 3 }), damage).map(([all, faults]) => damaged(toBatch(all), faults)),
    fc.array(structured, { maxLength: 3 }).map((all) => `[${all.join(',')}]`),
  )
  fc.assert(
    fc.property(batch, (given) => void survives(() => fromBatch(given))),
    { numRuns: RUNS / 10 },
  )
})

test(`${RUNS} binary inputs: each a message or an error of ours`, () => {
  const seen = { read: 0, refused: 0 }
  const name = fc.oneof(
    fc.constantFrom('ce-id', 'CE-Source', 'ce-type', 'ce-specversion', 'ce-time', 'ce-subject', 'content-type'),
    fc.constantFrom('ce-__proto__', 'ce-tenantid', 'ce-', 'ce-Data', 'ce-data_base64', '__proto__', 'accept'),
    fc.string().map((text) => `ce-${text}`),
    fc.string(),
  )
  const value = fc.oneof(
    fc.constantFrom(
      '1.0',
      '2026-01-01T00:00:00Z',
      'application/json',
      'text/plain',
      '%E2%82%AC',
      '%E2%82',
      '%',
      '"',
      '""',
      '',
    ),
    fc.string({ unit: 'binary' }),
    fc.uint8Array(),
    fc.anything(),
  )
  const extra = fc.array(fc.tuple(name, value), { maxLength: 2 })
  const body = fc.oneof(structured, fc.uint8Array(), fc.constantFrom(null, undefined, '', '{"orderId":"1"}'))
  const prefix = fc.constantFrom('ce-', 'ce_', 'cloudEvents:')
  const input = fc.record({ sound: message, extra, body, prefix })
  fc.assert(
    fc.property(input, ({ sound, extra, body, prefix }) => {
      const { headers } = toBinary(sound, prefix)
      const mixed = Object.fromEntries([
        ...Object.entries(headers),
        ...extra.map(([key, given]) => [key.replace('ce-', prefix), given]),
      ])
      seen[survives(() => fromBinary(mixed, body, prefix))]++
    }),
    { numRuns: RUNS },
  )
  expect(Math.min(seen.read, seen.refused)).toBeGreaterThan(RUNS / 20)
})
