import type { Message } from './message.ts'
import { asError, causesOf, firstOf, framesOf } from './thrown.ts'

/** Shorter values stand in every text by chance, and give nothing away. */
const SHORTEST = 4
/** So much of a value is enough to know it again: parsers quote the beginning of what they could not read. */
const BEGINNING = 8
/** Payloads that are larger, or hold more values, are not searched: then nothing of the text is kept. */
const MOST_BYTES = 256 * 1024
const MOST_VALUES = 5000
const HIDDEN = '…'
/** Of a longer text only so much is searched and kept: nobody shows more of it. */
const MOST_TEXT = 10_000

/**
 * An error that somebody's code threw while it worked on a message, without anything of the message's data: name and code
 * are kept, and of its text, and of its causes' texts, all but the values that stand in the payload too. The same error
 * where there are none. What it means for the message (its class, a delay) stays.
 */
export function withoutData(thrown: unknown, message: Pick<Message, 'data'>): Error {
  const error = asError(thrown)
  const chain = [...causesOf(error)]
  const first = firstOf(chain.at(-1)!)
  if (first !== undefined) chain.push(first)
  if (chain.every((one) => one.message === '')) return error
  const hide = hider(message.data)
  if (hide !== undefined && chain.every((one) => hide(one.message) === one.message)) return error
  return copyOf(error, hide ?? (() => HIDDEN), 0)
}

/** The same where nobody knows the data: name and code are kept, and nothing of the text. */
export function withoutText(thrown: unknown): Error {
  return copyOf(asError(thrown), () => HIDDEN, 0)
}

type Hide = (text: string) => string

/** Takes the values of a payload out of a text; `undefined` where there are too many to search for, or they cannot be read. */
function hider(data: unknown): Hide | undefined {
  const values = new Set<string>()
  try {
    if (!collect(parsed(data), values, new Set(), 0)) return undefined
  } catch {
    return undefined
  }
  const all = [...values].flatMap(spellings)
  const long = byBeginning(all.filter(({ length }) => length > BEGINNING))
  // Longest first: one value may stand within another.
  const short = all.filter(({ length }) => length <= BEGINNING).sort((a, b) => b.length - a.length)
  const without = (text: string) =>
    short.reduce((rest, value) => rest.replaceAll(value, HIDDEN), withoutLong(text, long))
  return (text) => {
    if (text.length <= MOST_TEXT) return without(text)
    const kept = without(text.slice(0, MOST_TEXT)).slice(0, -BEGINNING)
    // The last word may be the beginning of a value, or of a password.
    const end = Math.max(...[' ', '\n', '\t'].map((space) => kept.lastIndexOf(space)))
    return `${kept.slice(0, end + 1)}${HIDDEN}`
  }
}

/** As it is, and as it stands in JSON, in a URL and in what Node shows. */
function spellings(value: string): string[] {
  const json = JSON.stringify(value).slice(1, -1)
  const shown = json.replaceAll('\\"', '"').replaceAll("'", "\\'")
  return [...new Set([value, json, shown, encodeURIComponent(wellFormed(value))])]
}

/** Of every Node we run on, and not yet in the types that we compile with. */
function wellFormed(text: string): string {
  return (text as unknown as { toWellFormed(): string }).toWellFormed()
}

function byBeginning(values: readonly string[]): ReadonlyMap<string, readonly string[]> {
  const found = new Map<string, string[]>()
  for (const value of values) {
    const beginning = value.slice(0, BEGINNING)
    const alike = found.get(beginning) ?? []
    found.set(beginning, alike)
    alike.push(value)
  }
  return found
}

/** Without the values, and what begins as one of them: of those that begin alike the one that goes furthest is hidden. */
function withoutLong(text: string, values: ReadonlyMap<string, readonly string[]>): string {
  let shown = ''
  let from = 0
  for (let at = 0; at + BEGINNING <= text.length; ) {
    const alike = values.get(text.slice(at, at + BEGINNING))
    if (alike === undefined) {
      at++
      continue
    }
    const length = alike.reduce((most, value) => Math.max(most, inCommon(text, at, value)), 0)
    shown += text.slice(from, at) + HIDDEN
    at += length
    from = at
  }
  return shown + text.slice(from)
}

/** How many characters of the value stand in the text at this place. */
function inCommon(text: string, at: number, value: string): number {
  let length = BEGINNING
  while (length < value.length && text[at + length] === value[length]) length++
  return length
}

function parsed(data: unknown): unknown {
  const text = data instanceof Uint8Array ? textOf(data) : data
  if (typeof text !== 'string') return text
  try {
    return JSON.parse(text)
  } catch {
    return text.split(/[^\p{L}\p{N}_.@+-]+/u)
  }
}

function textOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8')
}

/** Returns whether all of it was looked at. Names of fields are not data, but keys of maps may be. */
function collect(value: unknown, into: Set<string>, seen: Set<object>, depth: number): boolean {
  if (into.size > MOST_VALUES || depth > 64) return false
  if (typeof value === 'string' || typeof value === 'number' || typeof value === 'bigint') {
    const text = String(value)
    if (text.length > MOST_BYTES) return false
    if (text.trim().length >= SHORTEST) into.add(text)
    // Data that is JSON as text: what a batch is made of, or a value that was encoded twice.
    return !/^\s*[[{"]/.test(text) || collect(parsed(text), into, seen, depth + 1)
  }
  if (value instanceof Uint8Array) return collect(parsed(value), into, seen, depth + 1)
  if (typeof value !== 'object' || value === null || seen.has(value)) return true
  seen.add(value)
  // A moment, an address, a decimal: what is written as text in JSON is quoted as such.
  const { toJSON } = value as { toJSON?: unknown }
  if (typeof toJSON === 'function' && !collect(toJSON.call(value, ''), into, seen, depth + 1)) return false
  const inner =
    value instanceof Map ? [...value.entries()].flat() : value instanceof Set ? [...value] : Object.values(value)
  return inner.every((one) => collect(one, into, seen, depth + 1))
}

/** What may be read of an error elsewhere; its text is changed, the rest stays. */
const KEPT = ['name', 'code', 'severity', 'routine', 'delay', 'charged', 'after'] as const

function copyOf(error: Error, hide: Hide, depth: number): Error {
  const copy = Object.create(Object.getPrototypeOf(error)) as Error
  const put = (name: string, value: unknown) =>
    Object.defineProperty(copy, name, { value, configurable: true, writable: true, enumerable: false })
  put('message', hide(error.message))
  for (const name of KEPT) {
    const value = (error as unknown as Record<string, unknown>)[name]
    if (value !== undefined && !(name === 'name' && !Object.hasOwn(error, 'name'))) put(name, value)
  }
  const { cause } = error
  if (cause instanceof Error && depth < 8) put('cause', copyOf(asError(cause), hide, depth + 1))
  const first = firstOf(error)
  if (first !== undefined && depth < 8) put('errors', [copyOf(first, hide, depth + 1)])
  put('stack', [`${error.name}: ${copy.message}`, ...framesOf(error).map(hide)].join('\n'))
  return copy
}
