import type { Random } from '../core/index.ts'

/** Randomness that repeats itself: the same seed gives the same values, on every machine. */
export interface SeededRandom extends Random {
  /** Print it when a test fails, to have the same run again. */
  readonly seed: number | string
  /** A whole number from 0 up to, not including, `below`. */
  integer(below: number): number
  pick<T>(from: readonly T[]): T
  /** The same values in another order. */
  shuffle<T>(values: readonly T[]): T[]
}

/** Not for secrets. (sfc32 by Chris Doty-Humphrey, seeded with FNV-1a.) */
export function seededRandom(seed: number | string): SeededRandom {
  let a = hash(`${seed}/a`)
  let b = hash(`${seed}/b`)
  let c = hash(`${seed}/c`)
  let counter = 1
  const bits = (): number => {
    const sum = (a + b + counter++) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = (((c << 21) | (c >>> 11)) + sum) | 0
    return sum >>> 0
  }
  // The first values still show the seed.
  for (let i = 0; i < 15; i++) bits()
  const integer = (below: number): number => Math.floor((bits() / 0x1_0000_0000) * below)
  return {
    seed,
    next: () => bits() / 0x1_0000_0000,
    fill(bytes) {
      for (let i = 0; i < bytes.length; i++) bytes[i] = bits() >>> 24
    },
    integer,
    pick(from) {
      if (from.length === 0) throw new RangeError('nothing to pick from')
      return from[integer(from.length)]!
    },
    shuffle(values) {
      const shuffled = [...values]
      for (let i = shuffled.length - 1; i > 0; i--) {
        const j = integer(i + 1)
        const value = shuffled[i]!
        shuffled[i] = shuffled[j]!
        shuffled[j] = value
      }
      return shuffled
    },
  }
}

function hash(text: string): number {
  let value = 0x811c9dc5
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193)
  return value | 0
}
