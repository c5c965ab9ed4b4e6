import { inspect } from 'node:util'
import { describe, expect, test } from 'vitest'
import { toBatch, toBinary, toStructured } from '../../src/cloudevents/index.ts'
import { type Attributes, checkAttributes, encodeData, event, isRaw, local, Message } from '../../src/core/index.ts'
import { thrown } from './thrown.ts'

const attributes: Attributes = { id: '1', source: '/order', type: 'order.placed' }

describe('a message', () => {
  test('knows its key, tenant and version', () => {
    const plain = new Message(attributes, {})
    expect([plain.key, plain.tenant, plain.version]).toEqual([undefined, undefined, 1])
    const extensions = { partitionkey: 'k', tenantid: 't', eventversion: '3' }
    const full = new Message({ ...attributes, extensions }, {})
    expect([full.key, full.tenant, full.version]).toEqual(['k', 't', 3])
  })

  test.each(['x', '0', '-1', '1.5', ''])('a version of %j is version 1', (eventversion) => {
    expect(new Message({ ...attributes, extensions: { eventversion } }, {}).version).toBe(1)
  })

  test('does not change: with makes a copy', () => {
    const before = new Message({ ...attributes, extensions: { tenantid: 't', traceparent: 'x' } }, { total: 1 })
    const after = before.with({ subject: 's', extensions: { partitionkey: 'k', traceparent: undefined } as never })
    expect(before.subject).toBeUndefined()
    expect(before.extensions).toEqual({ tenantid: 't', traceparent: 'x' })
    expect(after.extensions).toEqual({ tenantid: 't', partitionkey: 'k' })
    expect(after.data).toBe(before.data)
    expect([after.id, after.subject]).toEqual(['1', 's'])
  })

  test('is raw when it is made of text or bytes, and a value when made of anything else', () => {
    expect(isRaw(new Message(attributes, '{}'))).toBe(true)
    expect(isRaw(new Message(attributes, new Uint8Array()))).toBe(true)
    expect(isRaw(new Message(attributes, {}))).toBe(false)
    expect(isRaw(new Message(attributes, '{}').withData({}))).toBe(false)
    expect(isRaw(new Message(attributes, '{}').with({ subject: 's' }))).toBe(true)
  })

  test('a value that happens to be text is a value', () => {
    const greeted = event<string>('person.greeted')('hello')
    expect(isRaw(greeted)).toBe(false)
    expect(isRaw(greeted.with({ subject: 's' }))).toBe(false)
    expect(isRaw(greeted.withData('bye'))).toBe(false)
    expect(encodeData(greeted).data).toBe('"hello"')
  })

  test('shows no data when printed', () => {
    const message = new Message(attributes, { card: '4111' })
    expect(`${message}`).toBe('order.placed 1')
    expect(inspect(message)).toBe('Message(order.placed 1)')
    expect(inspect({ deep: [message] })).not.toContain('4111')
  })
})

describe('locals', () => {
  const span = local<string>('span')
  const other = local<string>('span')

  test('travel with the message and its copies', () => {
    const message = new Message(attributes, {})
    message.setLocal(span, 'secret-local')
    expect(message.local(span)).toBe('secret-local')
    expect(message.local(other)).toBeUndefined()
    expect(message.with({ subject: 's' }).local(span)).toBe('secret-local')
    expect(message.withData('x').local(span)).toBe('secret-local')
    expect(encodeData(message).local(span)).toBe('secret-local')
  })

  test('of a copy are its own', () => {
    const message = new Message(attributes, {})
    message.setLocal(span, 'a')
    const copy = message.with({})
    copy.setLocal(span, 'b')
    expect(message.local(span)).toBe('a')
  })

  test('never reach the wire', () => {
    const message = event<object>('order.placed')({ total: 1 }, { key: 'k' })
    message.setLocal(span, 'secret-local')
    const raw = encodeData(message)
    for (const one of [message, raw]) {
      const wire = [toStructured(one), toBatch([one]), JSON.stringify(toBinary(one)), JSON.stringify(one), `${one}`]
      for (const text of wire) expect(text).not.toMatch(/secret-local|span|locals|checkedBy/)
    }
  })
})

describe('attributes', () => {
  test.each<[string, object]>([
    ['id', { id: '' }],
    ['id', { id: undefined }],
    ['id', { id: 1 }],
    ['source', { source: '' }],
    ['type', { type: null }],
    ['subject', { subject: '' }],
    ['datacontenttype', { datacontenttype: 1 }],
    ['dataschema', { dataschema: '' }],
    ['time', { time: 'yesterday' }],
    ['time', { time: '2026-13-01T00:00:00Z' }],
    ['time', { time: '2026-01-01T00:00:00' }],
    ['time', { time: 5 }],
    ['Upper', { extensions: { Upper: 'x' } }],
    ['trace-id', { extensions: { 'trace-id': 'x' } }],
    ['data', { extensions: { data: 'x' } }],
    ['id', { extensions: { id: 'x' } }],
    ['__proto__', { extensions: JSON.parse('{"__proto__":"x"}') }],
    ['price', { extensions: { price: 1.5 } }],
    ['large', { extensions: { large: 2 ** 31 } }],
    ['object', { extensions: { object: {} } }],
    ['nothing', { extensions: { nothing: null } }],
  ])('a wrong %s is named', (name, wrong) => {
    const error = thrown(() => checkAttributes({ ...attributes, ...wrong } as Attributes))
    expect(error.code).toBe('MALFORMED_MESSAGE')
    expect(error.message).toContain(`message attribute ${JSON.stringify(name)}: `)
  })

  test.each(['2026-01-01T00:00:00Z', '2026-01-01T00:00:00.123456789+02:00', '2026-01-01t00:00:00z'])(
    'the time %s is one',
    (time) => {
      checkAttributes({ ...attributes, time })
    },
  )

  test('extensions are text, 32-bit whole numbers, booleans and bytes', () => {
    const extensions = { a: 'x', b: -(2 ** 31), c: 2 ** 31 - 1, d: false, e: new Uint8Array([1]), f: '' }
    checkAttributes({ ...attributes, extensions })
  })
})
