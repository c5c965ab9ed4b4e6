import { randomFillSync } from 'node:crypto'

/** Randomness, injected. A test hands in a seeded one; jitter and ids are then reproducible. */
export interface Random {
  /** In [0, 1). */
  next(): number
  /** Fills `bytes` with unpredictable values. */
  fill(bytes: Uint8Array): void
}

// Asking the system for sixteen bytes at a time costs more than everything else in making an id.
const pool = new Uint8Array(4096)
let used = pool.length

/** Randomness of this machine. */
export const systemRandom: Random = {
  next: () => Math.random(),
  fill(bytes) {
    if (bytes.length > pool.length) {
      randomFillSync(bytes)
      return
    }
    if (used + bytes.length > pool.length) {
      randomFillSync(pool)
      used = 0
    }
    bytes.set(pool.subarray(used, used + bytes.length))
    used += bytes.length
  },
}
