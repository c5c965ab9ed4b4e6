import { randomUUID } from 'node:crypto'
import { keyOf, order } from '../pg-events.ts'
import type { BareEvent } from './broker.ts'

/** Events as the outbox would give them. */
export function bareEvents(count: number): BareEvent[] {
  const time = new Date().toISOString()
  const common = { topic: 'order.placed', source: '/bench', type: 'order.placed', version: '1', time }
  return Array.from({ length: count }, (_, i) => {
    return { ...common, id: randomUUID(), key: keyOf(i), data: JSON.stringify(order(i)) }
  })
}

/** Parts of a list, `at` of them at a time. */
export async function inParts<T>(
  all: readonly T[],
  { size, at }: { size: number; at: number },
  work: (part: readonly T[]) => Promise<unknown>,
): Promise<void> {
  let from = 0
  const lane = async () => {
    while (from < all.length) {
      const part = all.slice(from, from + size)
      from += size
      await work(part)
    }
  }
  await Promise.all(Array.from({ length: at }, lane))
}
