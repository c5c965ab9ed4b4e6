import { describe, expect, test } from 'vitest'
import { Lease } from '../../src/flow/lease.ts'
import { FakeClock } from '../../src/testing/index.ts'

const at = async (clock: FakeClock, ms: number) => clock.advance(ms - clock.monotonic())

function setUp() {
  const clock = new FakeClock()
  const begin = clock.monotonic()
  return { clock, lease: new Lease(clock, 1000), to: (ms: number) => at(clock, begin + ms), begin }
}

describe('a lease', () => {
  test('is over at nine tenths of its time, counted from when it was asked for', async () => {
    const { lease, to, begin } = setUp()
    await to(500)
    lease.claimed(begin)
    await to(899)
    expect(lease.live).toBe(true)
    await to(900)
    expect(lease.live).toBe(false)
    expect(lease.until).toBe(begin + 900)
  })

  test('of nothing never ends', async () => {
    const { lease, to } = setUp()
    await to(1_000_000)
    expect(lease.live).toBe(true)
  })

  test('of several claims ends with the first', () => {
    const { lease, begin } = setUp()
    lease.claimed(begin + 300)
    lease.claimed(begin + 100)
    lease.claimed(begin + 200)
    expect(lease.until).toBe(begin + 1000)
  })

  test('that was renewed counts from when that was asked for, not from when it was answered', async () => {
    const { lease, to, begin } = setUp()
    lease.claimed(begin)
    await to(300)
    const asked = lease.renewing()
    await to(600)
    expect(lease.until).toBe(begin + 900)
    lease.renewed(asked, true)
    expect(lease.until).toBe(begin + 1200)
  })

  test('whose renewal fails ends when it would have', async () => {
    const { lease, to, begin } = setUp()
    lease.claimed(begin)
    await to(300)
    lease.renewing()
    await to(600)
    const asked = lease.renewing()
    expect(lease.until).toBe(begin + 900)
    lease.renewed(asked, true)
    expect(lease.until).toBe(begin + 1500)
  })

  test('of what was claimed during a renewal is not renewed by it', async () => {
    const { lease, to, begin } = setUp()
    await to(300)
    const asked = lease.renewing()
    lease.claimed(begin + 100) // a request that was under way before the renewal
    lease.renewed(asked, true)
    expect(lease.until).toBe(begin + 1000)
    lease.renewed(lease.renewing(), false)
    expect(lease.until).toBe(Number.POSITIVE_INFINITY)
  })
})
