import { describe, expect, test } from 'vitest'
import { Quarantine } from '../../src/outbox/quarantine.ts'

const ORDINARY = { expired: false, moreExpired: false }
const EXPIRED = { expired: true, moreExpired: false }
const MORE = { expired: false, moreExpired: true }

describe('events whose lease expired', () => {
  test('come alone at first, then in groups that double, up to a hundred', () => {
    const quarantine = new Quarantine()
    const sizes: number[] = []
    for (let i = 0; i < 9; i++) {
      sizes.push(quarantine.allowance(1000, 0))
      quarantine.claimed(EXPIRED)
      quarantine.settled(0)
    }
    expect(sizes).toEqual([1, 2, 4, 8, 16, 32, 64, 100, 100])
  })

  test('are never more than was asked for', () => {
    const quarantine = new Quarantine()
    quarantine.claimed(EXPIRED)
    quarantine.claimed(EXPIRED)
    expect(quarantine.allowance(3, 0)).toBe(3)
  })

  test('are not claimed beside what is in progress', () => {
    expect(new Quarantine().allowance(100, 1)).toBe(0)
  })

  test('keep everything else waiting while they are in progress, and while there are more', () => {
    const quarantine = new Quarantine()
    expect(quarantine.active).toBe(false)
    quarantine.claimed(MORE)
    expect(quarantine.active).toBe(true)
    quarantine.claimed({ expired: true, moreExpired: true })
    expect(quarantine.active).toBe(true)
    quarantine.settled(0)
    quarantine.claimed(ORDINARY)
    expect(quarantine.active).toBe(false)
  })

  test('that take long let others go on: those may be needed to tell them from an outage', () => {
    const quarantine = new Quarantine()
    quarantine.claimed(EXPIRED)
    quarantine.renewed(1)
    expect(quarantine.active).toBe(false)
    quarantine.claimed(MORE)
    expect(quarantine.active).toBe(false)
  })

  test('that took long keep others waiting again once nothing is in progress', () => {
    const quarantine = new Quarantine()
    quarantine.claimed(EXPIRED)
    quarantine.renewed(1)
    quarantine.settled(1)
    quarantine.claimed(MORE)
    expect(quarantine.active).toBe(false)
    quarantine.settled(0)
    quarantine.claimed(MORE)
    expect(quarantine.active).toBe(true)
  })

  test('a renewal of nothing changes nothing', () => {
    const quarantine = new Quarantine()
    quarantine.claimed(MORE)
    quarantine.renewed(0)
    expect(quarantine.active).toBe(true)
  })
})
