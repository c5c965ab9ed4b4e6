import { describe, expect, test } from 'vitest'
import { Floor } from '../../src/postgres/owner-floor.ts'

const NONE = Number.POSITIVE_INFINITY

describe('where a scan may begin', () => {
  test('at the very left, until it is known that nobody writes below', () => {
    const floor = new Floor()
    floor.scanned(1, 100, NONE, floor.safe)
    expect(floor.value).toBe(-1)
  })

  test('below everything in hand and everything just read', () => {
    const floor = new Floor()
    floor.scanned(1, 100, NONE, floor.safe)
    floor.writers([])
    floor.writers([])
    floor.scanned(101, 200, 40, floor.safe)
    expect(floor.value).toBe(39)
    floor.scanned(150, 200, NONE, floor.safe)
    expect(floor.value).toBe(100)
  })

  test('a writer that was at work when the numbers were read holds it back until it has ended', () => {
    const floor = new Floor()
    floor.scanned(1, 100, NONE, floor.safe)
    floor.writers(['3/7'])
    floor.writers(['3/7', '4/1'])
    floor.scanned(101, 200, NONE, floor.safe)
    expect(floor.value).toBe(-1)
    // It may have committed number 50 just now: one scan more from where the last began, then no longer.
    floor.writers(['4/1'])
    expect(floor.value).toBe(-1)
    floor.scanned(50, 300, NONE, floor.safe)
    expect(floor.value).toBe(49)
    floor.scanned(201, 300, NONE, floor.safe)
    expect(floor.value).toBe(100)
  })

  test('a scan that began before the last writer ended proves nothing about what that one wrote', () => {
    const floor = new Floor()
    floor.scanned(1, 100, NONE, floor.safe)
    floor.writers(['3/7'])
    const asked = floor.safe
    floor.writers([])
    floor.scanned(101, 200, NONE, asked)
    expect(floor.value).toBe(-1)
  })

  test('a transaction that is prepared goes on under another name', () => {
    const floor = new Floor()
    floor.scanned(1, 100, NONE, floor.safe)
    floor.writers(['3/7'])
    floor.writers(['-1/900'])
    floor.scanned(101, 200, NONE, floor.safe)
    expect(floor.value).toBe(-1)
    floor.writers([])
    floor.scanned(101, 200, NONE, floor.safe)
    expect(floor.value).toBe(100)
  })
})
