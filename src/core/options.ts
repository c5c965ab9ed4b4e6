import { WaybillError } from './errors.ts'

/** Every name of an options type. One that is missing, or does not exist, is a type error. */
export type OptionNames<Options> = { readonly [Name in keyof Options]-?: true }

/**
 * Refuses keys that `names` does not have, and suggests the nearest: a misspelt option that is silently ignored is a
 * default nobody chose. The compiler compares `names` with the type of `given`.
 */
export function checkOptions<Options extends object>(
  where: string,
  given: Options | undefined,
  names: OptionNames<NoInfer<Options>>,
): void {
  if (given === undefined) return
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    throw new WaybillError('INVALID_OPTION', `${where}: options must be an object, got ${describe(given)}`)
  }
  for (const key of Object.keys(given)) {
    if (Object.hasOwn(names, key)) continue
    const text = `${where}: unknown option ${JSON.stringify(key)}${suggestion(key, Object.keys(names))}`
    throw new WaybillError('UNKNOWN_OPTION', text)
  }
}

/** A whole number within bounds, or an error that names the option, the value and the bounds. */
export function wholeNumber(where: string, value: number, bounds: { min?: number; max?: number } = {}): number {
  const min = bounds.min ?? 1
  const max = bounds.max ?? Number.MAX_SAFE_INTEGER
  if (!Number.isSafeInteger(value) || value < min || value > max) {
    const upper = bounds.max === undefined ? '' : ` and at most ${max}`
    throw new WaybillError(
      'INVALID_OPTION',
      `${where}: ${describe(value)} is not allowed; give a whole number of at least ${min}${upper}`,
    )
  }
  return value
}

/** One of a few words, or an error that lists them. */
export function oneOf<T extends string>(where: string, value: unknown, allowed: readonly T[]): T {
  if (allowed.includes(value as T)) return value as T
  const text = `${where}: ${describe(value)} is not allowed${suggestion(String(value), allowed)}`
  throw new WaybillError('INVALID_OPTION', text)
}

function suggestion(word: string, allowed: readonly string[]): string {
  const near = nearest(word, allowed)
  return `${near === undefined ? '.' : `; did you mean ${JSON.stringify(near)}?`} Allowed: ${allowed.join(', ')}`
}

/** The candidate that is closest to `word`, if any is close enough to have been meant. */
export function nearest<T extends string>(
  word: string,
  candidates: readonly T[],
  most = Math.max(2, Math.floor(word.length / 3)),
): T | undefined {
  let best: T | undefined
  let bestDistance = most + 1
  for (const candidate of candidates) {
    const distance = editDistance(word.toLowerCase(), candidate.toLowerCase(), bestDistance)
    if (distance < bestDistance) {
      best = candidate
      bestDistance = distance
    }
  }
  return best
}

function editDistance(a: string, b: string, limit: number): number {
  if (Math.abs(a.length - b.length) >= limit) return limit
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const replaced = row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)
      next[j] = Math.min(replaced, row[j]! + 1, next[j - 1]! + 1)
    }
    row = next
  }
  return row[b.length]!
}

/** Everything up to its last @: people do not always encode the / in a password. */
function withoutLogin(text: string): string {
  const begin = text.indexOf('://')
  const end = text.lastIndexOf('@')
  return begin < 0 || end < begin ? text : `${text.slice(0, begin + 3)}…${text.slice(end)}`
}

/** What JSON leaves as it is, and what moves the cursor of a terminal or turns text round. */
const UNSEEN = /[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g

/** A value as it may stand in an error: short, never an object's content, and of a URL neither user nor password. */
export function describe(value: unknown): string {
  if (typeof value === 'string') {
    const shown = withoutLogin(value)
    const short = shown.length > 60 ? `${shown.slice(0, 57)}...` : shown
    return JSON.stringify(short).replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`)
  }
  if (value === null || value === undefined) return String(value)
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint') return String(value)
  return Array.isArray(value) ? 'an array' : typeof value === 'function' ? 'a function' : 'an object'
}
