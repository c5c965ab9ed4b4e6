import { plainText } from '../core/index.ts'

/** What stands for every value that has no room of its own. */
export const OTHER = 'other'

/**
 * A label whose values are bounded: the listed ones, or the first `most` that come. Types and tenants come from other
 * people's messages, and every distinct value is a time series for good.
 */
export function boundedLabel(allowed: number | readonly string[]): (value: string) => string {
  if (typeof allowed !== 'number') {
    const listed = new Set(allowed)
    return (value) => (listed.has(value) ? value : OTHER)
  }
  const seen = new Map<string, string>()
  return (value) => {
    const known = seen.get(value)
    if (known !== undefined) return known
    if (seen.size >= allowed || value.length > MAX_LENGTH) return OTHER
    // A scrape is read in terminals too. Half a character is another sign when it is sent, the same for each half.
    const inert = plainText(value, MAX_LENGTH).replace(/\p{Cs}/gu, '\ufffd')
    seen.set(value, inert)
    return inert
  }
}

const MAX_LENGTH = 255
