import { WaybillError } from './errors.ts'
import { describe } from './options.ts'

/**
 * Whether a dotted name fits: `order.placed` itself, `order.*` where `*` is any one part, `order.#` where `#` is any
 * number of parts at the end, none included; `#` alone is everything.
 */
export function patternOf(where: string, pattern: unknown): (name: string) => boolean {
  if (typeof pattern !== 'string' || pattern === '') {
    const text = `${where}: ${describe(pattern)} is no pattern; give a name, or one with wildcards such as "order.*"`
    throw new WaybillError('INVALID_OPTION', text)
  }
  if (pattern === '#') return () => true
  const parts = pattern.split('.')
  const rest = parts.at(-1) === '#'
  if (rest) parts.pop()
  if (parts.includes('#')) {
    throw new WaybillError('INVALID_OPTION', `${where}: in ${describe(pattern)} the wildcard # is not at the end`)
  }
  if (!rest && !parts.includes('*')) return (name) => name === pattern
  return (name) => {
    // No more parts than are compared: names come from other people's messages.
    const given = name.split('.', parts.length + 1)
    if (rest ? given.length < parts.length : given.length !== parts.length) return false
    return parts.every((part, i) => part === '*' || part === given[i])
  }
}
