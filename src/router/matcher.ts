import { type Message, WaybillError } from '../core/index.ts'

/** A type (`order.placed`), a pattern over its dotted parts (`order.*`, `order.#`, `*`), or a function. */
export type Matcher = string | ((message: Message) => boolean)

/** `*` stands for one part of a type, `#` for any number of parts at the end. */
export function matcherOf(given: Matcher | undefined): (message: Message) => boolean {
  if (given === undefined || given === '#') return () => true
  if (typeof given === 'function') return given
  if (typeof given !== 'string' || given === '') {
    throw new WaybillError('INVALID_OPTION', 'a matcher is an event type, a pattern such as "order.*", or a function')
  }
  if (!given.includes('*') && !given.includes('#')) return (message) => message.type === given
  const pattern = matchesPattern(given)
  return (message) => pattern(message.type)
}

export function matchesPattern(pattern: string): (name: string) => boolean {
  const parts = pattern.split('.').map((part) => {
    if (part === '*') return '[^.]+'
    if (part === '#') return '.*'
    return part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
  })
  const compiled = new RegExp(`^${parts.join('\\.').replace(/\\\.\.\*$/, '(\\..*)?')}$`)
  return (name) => compiled.test(name)
}
