import { describe, expect, test } from 'vitest'
import { LowWater, START } from '../../src/postgres/low-water.ts'

const NONE = Number.POSITIVE_INFINITY

describe('where a scan may begin', () => {
  test('at the very left, until it is known that nobody writes below', () => {
    const lowWater = new LowWater()
    lowWater.scanned(1, 100, NONE, lowWater.safe)
    expect(lowWater.value).toBe(START)
  })

  test('below everything unsettled and everything just read', () => {
    const lowWater = new LowWater()
    lowWater.scanned(1, 100, NONE, lowWater.safe)
    lowWater.writers([])
    lowWater.writers([])
    lowWater.scanned(101, 200, 40, lowWater.safe)
    expect(lowWater.value).toBe(39)
    lowWater.scanned(150, 200, NONE, lowWater.safe)
    expect(lowWater.value).toBe(100)
  })

  test('a writer that was at work when the numbers were read holds it back until it has ended', () => {
    const lowWater = new LowWater()
    lowWater.scanned(1, 100, NONE, lowWater.safe)
    lowWater.writers(['3/7'])
    lowWater.writers(['3/7', '4/1'])
    lowWater.scanned(101, 200, NONE, lowWater.safe)
    expect(lowWater.value).toBe(START)
    // It may have committed number 50 just now: one scan more from where the last began, then no longer.
    lowWater.writers(['4/1'])
    expect(lowWater.value).toBe(START)
    lowWater.scanned(50, 300, NONE, lowWater.safe)
    expect(lowWater.value).toBe(49)
    lowWater.scanned(201, 300, NONE, lowWater.safe)
    expect(lowWater.value).toBe(100)
  })

  test('a scan that began before the last writer ended proves nothing about what that one wrote', () => {
    const lowWater = new LowWater()
    lowWater.scanned(1, 100, NONE, lowWater.safe)
    lowWater.writers(['3/7'])
    const asked = lowWater.safe
    lowWater.writers([])
    lowWater.scanned(101, 200, NONE, asked)
    expect(lowWater.value).toBe(START)
  })

  test('where sessions cache numbers, always at the very left', () => {
    const lowWater = new LowWater(false)
    lowWater.scanned(1, 100, NONE, lowWater.safe)
    lowWater.writers([])
    lowWater.writers([])
    lowWater.scanned(101, 200, NONE, lowWater.safe)
    expect(lowWater.value).toBe(START)
  })

  test('a transaction that is prepared goes on under another name', () => {
    const lowWater = new LowWater()
    lowWater.scanned(1, 100, NONE, lowWater.safe)
    lowWater.writers(['3/7'])
    lowWater.writers(['-1/900'])
    lowWater.scanned(101, 200, NONE, lowWater.safe)
    expect(lowWater.value).toBe(START)
    lowWater.writers([])
    lowWater.scanned(101, 200, NONE, lowWater.safe)
    expect(lowWater.value).toBe(100)
  })
})
