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

type Hide = (text: string) => string

/** Takes the values of a payload out of a text; `undefined` where there are too many to search for. */
function hider(data: unknown): Hide | undefined {
  const values = new Set<string>()
  if (!collect(parsed(data), values, 0)) return undefined
  // Longest first: one value may stand within another.
  const all = [...values].flatMap(spellings).sort((a, b) => b.length - a.length)
  return (text) => all.reduce(hidden, text)
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

function hidden(text: string, value: string): string {
  const whole = text.includes(value) ? text.replaceAll(value, HIDDEN) : text
  if (value.length <= BEGINNING) return whole
  const at = whole.indexOf(value.slice(0, BEGINNING))
  if (at < 0) return whole
  let length = BEGINNING
  while (length < value.length && whole[at + length] === value[length]) length++
  return hidden(whole.slice(0, at) + HIDDEN + whole.slice(at + length), value)
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
function collect(value: unknown, into: Set<string>, depth: number): boolean {
  if (into.size > MOST_VALUES || depth > 64) return false
  if (typeof value === 'string' || typeof value === 'number' || typeof value === 'bigint') {
    const text = String(value)
    if (text.length > MOST_BYTES) return false
    if (text.trim().length >= SHORTEST) into.add(text)
    // Data that is JSON as text: what a batch is made of, or a value that was encoded twice.
    return !/^\s*[[{"]/.test(text) || collect(parsed(text), into, depth + 1)
  }
  if (value instanceof Uint8Array) return collect(parsed(value), into, depth + 1)
  if (typeof value !== 'object' || value === null) return true
  if (value instanceof Date) into.add(value.toISOString())
  const inner =
    value instanceof Map ? [...value.entries()].flat() : value instanceof Set ? [...value] : Object.values(value)
  return inner.every((one) => collect(one, into, depth + 1))
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
