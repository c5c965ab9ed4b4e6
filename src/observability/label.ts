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
  const seen = new Set<string>()
  return (value) => {
    if (seen.has(value)) return value
    if (seen.size >= allowed || value.length > MAX_LENGTH) return OTHER
    seen.add(value)
    return value
  }
}

const MAX_LENGTH = 255
