import { checkOptions, describe, Message, WaybillError } from '../core/index.ts'
import type { EnqueueOptions } from '../store/store.ts'

/** Of every store, so that an event goes through any. An index of PostgreSQL must hold it, whose entries end at 2,700 bytes. */
export const MAX_KEY_BYTES = 1024

/** What callers without types may give in place of an event. */
export function checkEvent(event: unknown): asserts event is Message {
  if (event instanceof Message) return
  if (typeof event === 'object' && isTransaction(event)) throw swapped()
  const given = typeof event === 'object' && event !== null ? (event as Record<string, unknown>) : undefined
  const missing = ['id', 'source', 'type'].filter((name) => given !== undefined && typeof given[name] !== 'string')
  const lacks = missing.length === 0 ? '' : `, it has no ${missing.join(', no ')}`
  const text = `enqueue: ${describe(event)} is not an event${lacks}; make one with a definition, such as OrderPlaced({ … })`
  throw new WaybillError('INVALID_OPTION', text)
}

/** `enqueue(event, options)` in the transaction we are in, as against `enqueue(tx, event, options)`. */
export function isAmbient([first, second]: readonly unknown[]): boolean {
  if (!(first instanceof Message) && !Array.isArray(first)) return false
  if (isTransaction(second)) throw swapped()
  return true
}

/** Whether any store would take it for one. Options have no methods. */
function isTransaction(given: unknown): boolean {
  if (typeof given === 'function') return true
  const { query, command, onRollback } = (given ?? {}) as Record<string, unknown>
  return typeof query === 'function' || typeof command === 'function' || typeof onRollback === 'function'
}

function swapped(): WaybillError {
  return new WaybillError('INVALID_OPTION', 'enqueue: the transaction comes first; give enqueue(tx, event, options)')
}

/** What every store allows beside the event; `allowed` are the names of all that this one does. */
export function checkEnqueueOptions(options: EnqueueOptions | undefined, allowed: readonly string[]): void {
  checkOptions('enqueue', options, allowed)
  if (options === undefined) return
  checkText('key', options.key, 'text that is not empty, or leave it out')
  checkText('topic', options.topic, 'text that is not empty, or leave it out')
  // An empty tenant is how stores write that there is none.
  if (options.tenant !== '') checkText('tenant', options.tenant, 'text')
}

function checkText(name: string, value: unknown, allowed: string): void {
  if (value === undefined || value === null || (typeof value === 'string' && value !== '')) return
  throw new WaybillError('INVALID_OPTION', `enqueue: ${name}: ${describe(value)} is not allowed; give ${allowed}`)
}

export function checkKey({ type }: Message, key: string | null | undefined): void {
  const bytes = Buffer.byteLength(key ?? '')
  if (bytes <= MAX_KEY_BYTES) return
  const text = `${describe(type)}: the key has ${bytes} bytes; at most ${MAX_KEY_BYTES} bytes; use a hash of it`
  throw new WaybillError('TOO_LARGE', text)
}

/**
 * Refuses what PostgreSQL cannot hold as text, and CloudEvents does not allow: a NUL, or half of a character (a surrogate
 * without its other half). Before anything is sent, so that the caller's transaction goes on. Data may hold both.
 */
export function checkTexts(message: Message, options: EnqueueOptions, topic: string): void {
  const { type, extensions } = message
  checkStorable(type, 'id', message.id)
  checkStorable(type, 'source', message.source)
  checkStorable(type, 'type', type)
  checkStorable(type, 'subject', message.subject)
  checkStorable(type, 'datacontenttype', message.datacontenttype)
  checkStorable(type, 'dataschema', message.dataschema)
  checkStorable(type, 'topic', topic)
  checkStorable(type, 'key', options.key)
  checkStorable(type, 'tenant', options.tenant)
  checkStorable(type, 'aggregate.type', options.aggregate?.type)
  checkStorable(type, 'aggregate.id', options.aggregate?.id)
  for (const name in extensions) checkStorable(type, name, extensions[name])
}

function checkStorable(type: string, name: string, value: unknown): void {
  if (typeof value !== 'string' || (!value.includes('\0') && isWellFormed(value))) return
  const what = value.includes('\0') ? 'a NUL character' : 'half of a character (a lone surrogate)'
  throw new WaybillError('INVALID_OPTION', `${describe(type)}: ${name} contains ${what}, which cannot be stored`)
}

/** Of every Node we run on, and not yet in the types that we compile with. */
function isWellFormed(text: string): boolean {
  return (text as unknown as { isWellFormed(): boolean }).isWellFormed()
}
