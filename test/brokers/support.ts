import { randomBytes } from 'node:crypto'
import { Message, type RawMessage } from '../../src/core/index.ts'
import type { Delivery, Session } from '../../src/flow/index.ts'
import { eventually } from '../support/wait.ts'

export const NEVER: AbortSignal = new AbortController().signal

let made = 0

/** A name nobody else has. */
export function fresh(prefix = 'n'): string {
  return `${prefix}-${randomBytes(5).toString('hex')}-${++made}`
}

export function message(
  data = '{"n":1}',
  attributes: { id?: string; key?: string; type?: string; extensions?: Record<string, string | number> } = {},
): RawMessage {
  const key = attributes.key === undefined ? {} : { partitionkey: attributes.key }
  const { id = `m-${process.pid}-${++made}`, type = 'thing.happened' } = attributes
  return new Message({ id, source: '/test', type, extensions: { ...key, ...attributes.extensions } }, data)
}

/** Takes until there are so many. */
export async function receive<D extends Delivery>(session: Session<D>, count: number, limit = 60_000): Promise<D[]> {
  const received: D[] = []
  for (const end = performance.now() + limit; received.length < count; ) {
    if (performance.now() > end) throw new Error(`${received.length} of ${count} have come`)
    const taken = await session.take({ count: count - received.length, bytes: 1e8 }, NEVER)
    received.push(...taken)
    if (taken.length === 0) await session.wait?.(100, NEVER)
  }
  return received
}

export async function until(what: string, condition: () => unknown, limit = 60_000): Promise<void> {
  await eventually(what, condition, { limit, every: 20 })
}
