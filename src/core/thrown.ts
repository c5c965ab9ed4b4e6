import { types } from 'node:util'
import { Reject, RetryLater, Unavailable, WaybillError } from './errors.ts'

/** How many errors of a chain of causes are read; the rest says nothing new, and a chain may be a circle. */
const DEPTH = 8

/** How much of a stack is read, from its end. */
const MAX_STACK = 20_000

/** All that is ever read of a foreign error, beside its stack. */
const FIELDS = [
  'name',
  'message',
  'code',
  'cause',
  'errors',
  'severity',
  'routine',
  'delay',
  'charged',
  'after',
] as const
type Field = (typeof FIELDS)[number]

/**
 * Whatever a user's or driver's code threw, as an Error that is safe to read. Anything can be thrown: a text, nothing, an
 * Error whose getters throw, a Proxy. It is read here, once, under guard; no other code reads what it has not been through.
 *
 * An Error whose fields are plain data is returned as it is. Anything else becomes a plain Error with what could be read.
 * The verdicts a handler may throw (Reject, RetryLater, Unavailable) keep their class. Never throws.
 */
export function asError(given: unknown): Error {
  try {
    return safe(given, 1)
  } catch {
    return new Error('what was thrown cannot be read')
  }
}

/** The error and what caused it, outermost first; safe to read. */
export function causesOf(given: unknown): readonly Error[] {
  const chain: Error[] = []
  // Further down than DEPTH nothing was looked at, so not even `instanceof` is safe.
  for (let at: unknown = asError(given); chain.length < DEPTH && at instanceof Error; at = at.cause) {
    if (chain.includes(at)) break
    chain.push(at)
  }
  return chain
}

/** A line of a stack that names a place. Lines of the message before it may hold anything. */
const FRAME = /^ {4}at .*(?::\d+:\d+\)?|\(<anonymous>\)|\(native\)|\(index \d+\))$/

/** The lines of an error's stack that say where, without those that say what. */
export function framesOf(error: Error): readonly string[] {
  const stack = attempt(() => error.stack)
  if (typeof stack !== 'string') return []
  // The message stands before the frames, and may look like one.
  const from = stack.indexOf(error.message)
  const after = from < 0 ? stack : stack.slice(from + error.message.length)
  const lines = after.slice(-MAX_STACK).split('\n')
  const last = lines.findLastIndex((line) => !FRAME.test(line))
  return lines.slice(last + 1)
}

/** How long a try after this error is in vain, in milliseconds: what an Unavailable says, or the answer to a webhook. */
export function pauseAfter(error: unknown): number {
  for (const one of causesOf(error)) {
    const { after } = one as { after?: unknown }
    if (one instanceof WaybillError && typeof after === 'number' && after > 0) return after
  }
  return 0
}

/** The first of those an AggregateError holds. */
export function firstOf(error: Error): Error | undefined {
  const first = attempt(() => (error as { errors?: readonly unknown[] }).errors?.[0])
  return first === undefined ? undefined : asError(first)
}

function safe(given: unknown, depth: number): Error {
  if ((typeof given !== 'object' && typeof given !== 'function') || given === null) return notAnError(given)
  return isPlain(given, depth) ? given : copyOf(given, depth)
}

/** Whether every field we may read is there as data, so that reading it runs nobody's code. */
function isPlain(given: object, depth: number): given is Error {
  if (!hasPlainClass(given) || !(given instanceof Error)) return false
  for (const field of FIELDS) {
    const holder = holderOf(given, field)
    const property = holder === undefined ? undefined : Object.getOwnPropertyDescriptor(holder, field)
    // Those of a DOMException (an aborted fetch) are getters of the platform's own, and do no harm.
    if (property !== undefined && !('value' in property) && holder !== DOMException.prototype) return false
  }
  const { name, message, cause } = given
  if (typeof name !== 'string' || typeof message !== 'string') return false
  if (typeof cause !== 'object' || cause === null || depth >= DEPTH) return true
  if (!hasPlainClass(cause)) return false
  return cause instanceof Error || types.isNativeError(cause) ? isPlain(cause, depth + 1) : true
}

/** No Proxy is among its prototypes, so that `instanceof` runs nobody's code either. */
function hasPlainClass(given: object): boolean {
  for (let at: object | null = given; at !== null; at = Object.getPrototypeOf(at)) if (types.isProxy(at)) return false
  return true
}

function holderOf(given: object, field: Field): object | undefined {
  let at: object | null = given
  while (at !== null && !Object.hasOwn(at, field)) at = Object.getPrototypeOf(at)
  return at ?? undefined
}

function copyOf(given: object, depth: number): Error {
  const read = (field: Field) => attempt(() => Reflect.get(given, field))
  const isError = attempt(() => types.isNativeError(given) || given instanceof Error) === true
  const cause = read('cause')
  const deeper = typeof cause === 'object' && cause !== null && depth < DEPTH
  const options = deeper ? { cause: safe(cause, depth + 1) } : {}
  const copy = isError ? sameClass(given, textOf(read('message')), options) : notAnError(given, options)
  // The name of what is no Error may be anybody's.
  for (const field of ['code', 'severity', 'routine', ...(isError ? (['name'] as const) : [])] as const) {
    const value = read(field)
    if (typeof value !== 'string' && (field !== 'code' || typeof value !== 'number')) continue
    Object.defineProperty(copy, field, { value, configurable: true, writable: true })
  }
  return copy
}

function textOf(message: unknown): string {
  return typeof message === 'string' ? message : 'its message cannot be read'
}

function sameClass(given: object, text: string, options: { cause?: unknown }): Error {
  const is = (made: new (...args: never[]) => unknown) => attempt(() => given instanceof made) === true
  if (is(Reject)) return new Reject(text, options)
  if (is(Unavailable)) return new Unavailable(text, options)
  if (is(RetryLater)) {
    const charged = attempt(() => Reflect.get(given, 'charged')) !== false
    const later = attempt(() => new RetryLater(Number(Reflect.get(given, 'delay')), text, { ...options, charged }))
    if (later instanceof RetryLater) return later
  }
  if (!is(WaybillError)) return new Error(text, options)
  const code = attempt(() => Reflect.get(given, 'code'))
  return new WaybillError(typeof code === 'string' ? code : 'UNREADABLE', text, options)
}

/** What it was is not shown: a thrown text may be the data itself. */
function notAnError(given: unknown, options: { cause?: unknown } = {}): Error {
  return new Error(`non-error thrown (${given === null ? 'null' : typeof given})`, options)
}

function attempt(read: () => unknown): unknown {
  try {
    return read()
  } catch {
    return undefined
  }
}
