import { expect, test } from 'vitest'
import { formatUuid, isUuid, systemRandom, uuidv7 } from '../../src/core/index.ts'

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
