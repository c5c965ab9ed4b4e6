import { CloudEvent, type CloudEventV1, HTTP } from 'cloudevents'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  fromBatch,
  fromBinary,
  fromStructured,
  STRUCTURED_TYPE,
  toBatch,
  toBinary,
  toStructured,
} from '../../src/cloudevents/index.ts'
import { type Attributes, decodeData, Message } from '../../src/core/index.ts'
import { attributes, bytes, json, plain, text, time } from '../core/arbitrary.ts'

/**
 * The official SDK as the oracle. Where it departs from the standard it is not asked: it drops data that is falsy,
 * reads a bare number in a binary body as text, writes a string into a JSON body without quotes, and neither writes
 * nor reads percent-encoded headers.
 */
const truthy = json.filter(Boolean)
const structure = json.filter((value) => typeof value === 'object' && value !== null)

/** The SDK gives an event without a time the present one. */
const timed = (string: fc.Arbitrary<string>) =>
  fc.tuple(attributes(string), time).map(([given, now]): Attributes => ({ ...given, time: given.time ?? now }))

const flat = ({ extensions, ...context }: Attributes) => ({ ...context, ...extensions })
const textual = (given: Attributes): Attributes => ({
  ...given,
  extensions: Object.fromEntries(Object.entries(given.extensions ?? {}).map(([name, value]) => [name, String(value)])),
})
const plainBytes = (data: unknown) => (ArrayBuffer.isView(data) ? Array.from(data as Uint8Array) : data)

function expectEvent(event: unknown, given: Attributes, data: unknown): void {
  const { specversion, data_base64, ...read } = event as CloudEventV1<unknown>
  const present = Object.fromEntries(Object.entries(read).filter(([, value]) => value !== undefined))
  expect(specversion).toBe('1.0')
  expect({ ...present, data: plainBytes(present['data']) }).toEqual({ ...flat(given), data: plainBytes(data) })
}

function expectMessage(message: Message, given: Attributes, data: unknown): void {
  const read = message.attributes()
  const present = Object.fromEntries(Object.entries(flat(read)).filter(([, value]) => value !== undefined))
  expect(present).toEqual(flat(given))
  expect(plainBytes(decodeData(message))).toEqual(plainBytes(data))
}

const sdkEvent = (given: Attributes, data: unknown) =>
  new CloudEvent({ ...flat(given), data } as CloudEventV1<unknown>, false)
const structured = (body: string) => HTTP.toEvent({ headers: { 'content-type': STRUCTURED_TYPE }, body })

describe('what we write, the SDK reads the same', () => {
  test('structured, JSON', () => {
    const property = fc.property(timed(text), truthy, (given, data) => {
      expectEvent(structured(toStructured(new Message(given, data, 'value'))), given, data)
    })
    fc.assert(property)
  })

  test('structured, text', () => {
    const property = fc.property(timed(text), text, (given, data) => {
      const full = { ...given, datacontenttype: 'text/plain' }
      expectEvent(structured(toStructured(new Message(full, data))), full, data)
    })
    fc.assert(property)
  })

  test('structured, bytes', () => {
    const property = fc.property(timed(text), bytes, (given, data) => {
      fc.pre(data.length > 0)
      const full = { ...given, datacontenttype: 'image/png' }
      expectEvent(structured(toStructured(new Message(full, data))), full, data)
    })
    fc.assert(property)
  })

  test('batches', () => {
    const property = fc.property(
      fc.array(fc.tuple(timed(plain), structure), { minLength: 1, maxLength: 4 }),
      (given) => {
        // The SDK validates the events of a batch: sources and schemas must be URIs.
        const sound = given.map(([one, data]) => [{ ...one, source: '/order', dataschema: undefined }, data] as const)
        const body = toBatch(sound.map(([one, data]) => new Message(one, data)))
        const events = HTTP.toEvent({ headers: { 'content-type': 'application/cloudevents-batch+json' }, body })
        for (const [at, [one, data]] of sound.entries()) {
          const { dataschema, ...rest } = one
          expectEvent((events as CloudEvent[])[at], rest, data)
        }
      },
    )
    fc.assert(property)
  })

  test('binary, JSON', () => {
    const property = fc.property(timed(plain), structure, (given, data) => {
      const full = { ...given, datacontenttype: 'application/json' }
      expectEvent(HTTP.toEvent(toBinary(new Message(full, data))), textual(full), data)
    })
    fc.assert(property)
  })

  test('binary, bytes, without percent-encoding', () => {
    const property = fc.property(timed(text), bytes, (given, data) => {
      const full = { ...given, datacontenttype: 'application/octet-stream' }
      expectEvent(HTTP.toEvent(toBinary(new Message(full, data), 'ce-', false)), textual(full), data)
    })
    fc.assert(property)
  })
})

describe('what the SDK writes, we read the same', () => {
  test('structured, JSON', () => {
    const property = fc.property(timed(text), truthy, (given, data) => {
      expectMessage(fromStructured(HTTP.structured(sdkEvent(given, data)).body as string), given, data)
    })
    fc.assert(property)
  })

  test('structured, text', () => {
    const property = fc.property(timed(text), text, (given, data) => {
      const full = { ...given, datacontenttype: 'text/plain' }
      expectMessage(fromStructured(HTTP.structured(sdkEvent(full, data)).body as string), full, data)
    })
    fc.assert(property)
  })

  test('structured, bytes', () => {
    const property = fc.property(timed(text), bytes, (given, data) => {
      fc.pre(data.length > 0)
      const full = { ...given, datacontenttype: 'image/png' }
      const body = JSON.stringify(sdkEvent(full, data))
      expectMessage(fromStructured(body), full, data)
    })
    fc.assert(property)
  })

  test('batches', () => {
    const property = fc.property(fc.array(fc.tuple(timed(text), truthy), { maxLength: 4 }), (given) => {
      const read = fromBatch(JSON.stringify(given.map(([one, data]) => sdkEvent(one, data))))
      expect(read).toHaveLength(given.length)
      for (const [at, [one, data]] of given.entries()) expectMessage(read[at]!, one, data)
    })
    fc.assert(property)
  })

  test('binary, JSON', () => {
    const property = fc.property(timed(plain), structure, (given, data) => {
      // A percent sign the SDK writes as it is; we would read what follows as an encoded byte.
      const full = JSON.parse(JSON.stringify(given).replaceAll('%', '.')) as Attributes
      const { headers, body } = HTTP.binary(sdkEvent(full, data))
      const datacontenttype = headers['content-type'] as string
      expectMessage(fromBinary(headers, body as string), { ...full, datacontenttype }, data)
    })
    fc.assert(property)
  })

  test('binary, bytes, without percent-encoding', () => {
    const property = fc.property(timed(text), bytes, (given, data) => {
      const full = { ...given, datacontenttype: 'application/octet-stream' }
      const { headers, body } = HTTP.binary(sdkEvent(full, data))
      expectMessage(fromBinary(headers, body as Uint8Array, 'ce-', false), full, data)
    })
    fc.assert(property)
  })
})
