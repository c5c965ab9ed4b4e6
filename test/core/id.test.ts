import { describe, expect, test } from 'vitest'
import { eventUuid, formatUuid, isUuid, nameUuid, systemRandom, uuidv7 } from '../../src/core/index.ts'
import { dueEventId } from '../../src/redis/index.ts'

const clock = (now: number) => ({ now: () => now, monotonic: () => now, sleep: async () => {} })

test('a UUID of version 7 has its time, version and variant', () => {
  const ones = { next: () => 0, fill: (bytes: Uint8Array) => void bytes.fill(0xff) }
  expect(uuidv7(clock(0x0123456789ab), ones)).toBe('01234567-89ab-7fff-bfff-ffffffffffff')
  const noughts = { next: () => 0, fill: (bytes: Uint8Array) => void bytes.fill(0) }
  expect(uuidv7(clock(0x0123456789ab), noughts)).toBe('01234567-89ab-7000-8000-000000000000')
})

test('later ones sort after earlier ones', () => {
  const times = [1, 255, 256, 65_536, 2 ** 32, 1_700_000_000_000, 1_700_000_000_001, 2 ** 47]
  const ids = times.map((now) => uuidv7(clock(now)))
  expect([...ids].sort()).toEqual(ids)
})

test('no two are the same, past every refill of the pool', () => {
  const ids = new Set(Array.from({ length: 20_000 }, () => uuidv7()))
  expect(ids.size).toBe(20_000)
  for (const id of ids) if (!isUuid(id)) expect.fail(`${id} is not a UUID`)
})

test('what is a UUID', () => {
  expect(isUuid('0190b5a0-0000-7000-8000-000000000000')).toBe(true)
  expect(isUuid('0190B5A0-0000-7000-8000-000000000000')).toBe(true)
  for (const other of ['', 'order-1', '0190b5a000007000800000000000 0000', '{0190b5a0-0000-7000-8000-000000000000}']) {
    expect(isUuid(other)).toBe(false)
  }
  expect(formatUuid(Uint8Array.from({ length: 16 }, (_, i) => i * 17))).toBe('00112233-4455-6677-8899-aabbccddeeff')
})

test('randomness fills more than its pool holds', () => {
  const bytes = new Uint8Array(10_000)
  systemRandom.fill(bytes)
  expect(new Set(bytes.subarray(5000)).size).toBeGreaterThan(200)
})

/**
 * Ids made of names are kept for as long as tables and streams are: with another namespace, or another way to put the
 * names together, the same event would be another one after an upgrade. The values are those of Python's `uuid` module
 * and of RFC 9562, not of this code.
 */
const DNS = '6ba7b810-9dad-11d1-80b4-00c04fd430c8'

describe('ids made of names', () => {
  test('are those of RFC 9562', () => {
    expect(nameUuid(3, DNS, 'www.example.com')).toBe('5df41881-3aed-3515-88a7-2f4a814cf09e')
    expect(nameUuid(5, DNS, 'www.example.com')).toBe('2ed6657d-e927-568b-95e1-2665a8aea6a2')
  })

  test.each([
    ['/shop', 'order-1', 'b32476fd-aaf9-55fa-ae7c-eeb08e1cc129'],
    ['/shop', '1', '995ab5ae-69ff-5ec1-9f18-79aa13c0ccd6'],
    ['/größe', 'ключ €😀', '79aa23b9-a290-53de-9a4d-522d7234bfc5'],
    ['https://other.example/x', 'order-1', '8a672d95-9b59-5561-941e-23f68b5dcb2b'],
  ])('an event of %s called %s has this one for ever', (source, id, uuid) => {
    // uuid.uuid5(uuid.UUID('6f1f8a04-6b0e-5c3a-9f0e-3a9d7f6c2b51'), source + '\0' + id)
    expect(eventUuid({ source, id })).toBe(uuid)
  })

  test('an id that is a UUID is its own, in lower case', () => {
    const id = '0190B5A0-0000-7000-8000-00000000ABCD'
    expect(eventUuid({ source: '/shop', id })).toBe('0190b5a0-0000-7000-8000-00000000abcd')
    expect(eventUuid({ source: '/other', id: id.toLowerCase() })).toBe('0190b5a0-0000-7000-8000-00000000abcd')
  })

  test('an intent that is due has this one for ever', () => {
    // uuid.uuid3(uuid.UUID('0f5d7a52-7a0c-5d5b-8b7e-5f2f6a1c9d34'), 'ticket-1|1735689600000')
    const id = dueEventId('ticket-1', new Date('2025-01-01T00:00:00Z'))
    expect(id).toBe('2d7aa0d3-d9fd-33a1-88de-578ae86e88c8')
  })
})
