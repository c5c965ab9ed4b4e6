/**
 * Finds a value inside JSON text, so that the very text can be kept: a parse and a serialisation would round large
 * numbers and reorder keys. In text that is not well-formed what is found means nothing, but the search ends.
 */
export interface JsonSpan {
  /** Where the member's value begins and ends; -1 when there is no such member. */
  from: number
  to: number
  /** Where the object ends. */
  end: number
}

const QUOTE = 34
const BACKSLASH = 92

/** The value of `name` in the object that begins at `start`. Of several, the last, as with `JSON.parse`. */
export function memberSpan(text: string, start: number, name: string): JsonSpan {
  const span: JsonSpan = { from: -1, to: -1, end: -1 }
  let at = skipSpace(text, start + 1)
  while (text.charCodeAt(at) === QUOTE) {
    const afterKey = skipString(text, at)
    const key = text.slice(at + 1, afterKey - 1)
    const from = skipSpace(text, skipSpace(text, afterKey) + 1)
    const to = skipValue(text, from)
    if (key === name || (key.includes('\\') && JSON.parse(`"${key}"`) === name)) {
      span.from = from
      span.to = to
    }
    at = skipSpace(text, to)
    if (text[at] === ',') at = skipSpace(text, at + 1)
  }
  span.end = at + 1
  return span
}

/** Where the value of the first member called `name` begins, or -1. It reads no further. */
export function memberStart(text: string, start: number, name: string): number {
  let at = skipSpace(text, start + 1)
  while (text.charCodeAt(at) === QUOTE) {
    const afterKey = skipString(text, at)
    const from = skipSpace(text, skipSpace(text, afterKey) + 1)
    if (afterKey - at - 2 === name.length && text.startsWith(name, at + 1)) return from
    at = skipSpace(text, skipValue(text, from))
    if (text[at] === ',') at = skipSpace(text, at + 1)
  }
  return -1
}

export function skipSpace(text: string, at: number): number {
  let code = text.charCodeAt(at)
  while (code === 32 || code === 10 || code === 13 || code === 9) code = text.charCodeAt(++at)
  return at
}

function skipString(text: string, at: number): number {
  for (let quote = text.indexOf('"', at + 1); quote >= 0; quote = text.indexOf('"', quote + 1)) {
    let before = quote
    while (text.charCodeAt(before - 1) === BACKSLASH) before--
    if ((quote - before) % 2 === 0) return quote + 1
  }
  return text.length
}

function skipValue(text: string, at: number): number {
  const first = text[at]
  if (first === '"') return skipString(text, at)
  if (first !== '{' && first !== '[') {
    while (at < text.length && !',}] \n\r\t'.includes(text[at]!)) at++
    return at
  }
  let depth = 0
  while (at < text.length) {
    const code = text.charCodeAt(at)
    if (code === QUOTE) {
      at = skipString(text, at)
      continue
    }
    if (code === 123 || code === 91) depth++
    else if (code === 125 || code === 93) depth--
    at++
    if (depth === 0) break
  }
  return at
}
