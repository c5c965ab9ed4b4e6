import { describe, expect, test } from 'vitest'
import { encode, webhookId } from '../../../src/brokers/http/encoding.ts'
import { attributesText, secretsOf, signatureOf, verify } from '../../../src/brokers/http/signature.ts'
import { message, OTHER_SECRET, SECRET } from './support.ts'

const body = Buffer.from('{"test": 2432232314}')
const signed = { id: 'msg_p5jXN8AQM9LWM0D4loKWxJek', timestamp: '1614265330', body, attributes: undefined }
const of = (...secrets: string[]) => secretsOf('test', secrets)

describe('signatures of Standard Webhooks', () => {
  test('are those of its test vector', () => {
    const secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'
    expect(signatureOf(of(secret), signed)).toBe('v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=')
    expect(verify(of(secret), 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=', signed)).toBe('whole')
  })

  test('secrets are changed one side at a time', () => {
    const both = signatureOf(of(SECRET, OTHER_SECRET), signed)
    expect(both.split(' ').length).toBe(2)
    for (const secret of [SECRET, OTHER_SECRET]) expect(verify(of(secret), both, signed)).toBe('whole')
    const one = signatureOf(of(SECRET), signed)
    expect(verify(of(OTHER_SECRET, SECRET), one, signed)).toBe('whole')
    expect(verify(of(OTHER_SECRET), one, signed)).toBe('no')
  })

  test.each([
    ['another id', { ...signed, id: 'msg_other' }],
    ['another time', { ...signed, timestamp: '1614265331' }],
    ['another body', { ...signed, body: Buffer.from('{"test": 2432232315}') }],
    ['a longer body', { ...signed, body: Buffer.concat([body, body]) }],
  ])('%s is noticed', (_, other) => {
    expect(verify(of(SECRET), signatureOf(of(SECRET), signed), other)).toBe('no')
  })

  test.each(['', 'v1', 'v1,', 'v1,AAAA', 'v2,g0hM', 'v1,%%%', 'v1,'.repeat(1000), ' '.repeat(100)])(
    'nonsense is no signature: %j',
    (text) => expect(verify(of(SECRET), text, signed)).toBe('no'),
  )

  test('in binary mode the attributes are signed too, with a key of their own', () => {
    const { headers, body: sent } = encode(message('{}', { subject: 'a' }), 'binary', of(SECRET), 1000)
    const parts = { id: headers['webhook-id']!, timestamp: '1', body: sent }
    const attributes = attributesText(headers)
    const signature = headers['webhook-signature']!
    expect(verify(of(SECRET), signature, { ...parts, attributes })).toBe('whole')
    const changed = attributesText({ ...headers, 'ce-id': 'another' })
    expect(verify(of(SECRET), signature, { ...parts, attributes: changed })).toBe('attributes')
    // The body's own signature cannot stand in for it, whatever the body holds.
    const [, mac] = signature.split(' ')[0]!.split(',')
    expect(verify(of(SECRET), `${signature.split(' ')[0]} v1ce,${mac}`, { ...parts, attributes })).toBe('attributes')
  })

  test.each([
    [[], /none was given/],
    [[undefined], /no text/],
    [['whsec_not base64!'], /not base64/],
    [['whsec_c2hvcnQ='], /has 5 bytes/],
  ])('%j is refused', (secrets, text) => expect(() => secretsOf('here', secrets)).toThrow(text))

  test('a secret that is refused is not shown', () => {
    try {
      secretsOf('here', 'whsec_c2VjcmV0c2VjcmV0')
      expect.unreachable()
    } catch (error) {
      expect(String(error)).not.toContain('c2VjcmV0')
    }
  })

  test('an event keeps its webhook id with every try, and shares it with no other', () => {
    const uuid = '0190163d-8694-739b-aea5-966c26f8ad91'
    expect(webhookId({ id: uuid, source: '/a' })).toBe(uuid)
    const [a, b] = [webhookId({ id: '1 ü', source: '/a' }), webhookId({ id: '1 ü', source: '/b' })]
    expect(a).toBe(webhookId({ id: '1 ü', source: '/a' }))
    expect(a).not.toBe(b)
    expect(a).toMatch(/^[0-9a-f-]{36}$/)
  })
})
