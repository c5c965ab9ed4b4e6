import type { OutgoingRecord } from '../../drivers/kafka/kafka.ts'

/**
 * The partition of a record. A key always has the same, and the same as with Java's clients, as long as the number of
 * partitions stays. Records without a key go round.
 */
export function partitioner(): (record: OutgoingRecord, partitions: number) => number {
  let next = 0
  return ({ key }, partitions) => {
    if (key !== null) return (murmur2(key) & 0x7fffffff) % partitions
    next = (next + 1) % 0x7fffffff
    return next % partitions
  }
}

const M = 0x5bd1e995

/** As in org.apache.kafka.common.utils.Utils. */
export function murmur2(data: Uint8Array): number {
  const { length } = data
  const whole = length & ~3
  let h = 0x9747b28c ^ length
  for (let i = 0; i < whole; i += 4) {
    let k = data[i]! | (data[i + 1]! << 8) | (data[i + 2]! << 16) | (data[i + 3]! << 24)
    k = Math.imul(k, M)
    k = Math.imul(k ^ (k >>> 24), M)
    h = Math.imul(h, M) ^ k
  }
  const rest = length & 3
  if (rest > 2) h ^= data[whole + 2]! << 16
  if (rest > 1) h ^= data[whole + 1]! << 8
  if (rest > 0) h = Math.imul(h ^ data[whole]!, M)
  h = Math.imul(h ^ (h >>> 13), M)
  return h ^ (h >>> 15)
}
