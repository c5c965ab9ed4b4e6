import { type Message, patternOf, WaybillError } from '../core/index.ts'

/** A type (`order.placed`), a pattern over its dotted parts (`order.*`, `order.#`, `*`), or a function. */
export type Matcher = string | ((message: Message) => boolean)

export function matcherOf(where: string, given: Matcher | undefined): (message: Message) => boolean {
  if (given === undefined) return () => true
  if (typeof given === 'function') return given
  if (typeof given !== 'string') {
    const text = `${where}: a matcher is an event type, a pattern such as "order.*", or a function`
    throw new WaybillError('INVALID_OPTION', text)
  }
  const fits = patternOf(where, given)
  return (message) => fits(message.type)
}
