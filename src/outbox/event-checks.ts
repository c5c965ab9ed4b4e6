import { describe, Message, WaybillError } from '../core/index.ts'

/** Of every store, so that an event goes through any. An index of PostgreSQL must hold it, whose entries end at 2,700 bytes. */
export const MAX_KEY_BYTES = 1024

/** What callers without types may give in place of an event. */
export function checkEvent(event: unknown): asserts event is Message {
  if (event instanceof Message) return
  const text = `enqueue: ${describe(event)} is not an event; make one with a definition, such as OrderPlaced({ … })`
  throw new WaybillError('INVALID_OPTION', text)
}

export function checkKey({ type }: Message, key: string | null | undefined): void {
  const bytes = Buffer.byteLength(key ?? '')
  if (bytes <= MAX_KEY_BYTES) return
  const text = `${describe(type)}: the key has ${bytes} bytes; at most ${MAX_KEY_BYTES} bytes; use a hash of it`
  throw new WaybillError('TOO_LARGE', text)
}
