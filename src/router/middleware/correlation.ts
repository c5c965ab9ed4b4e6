import type { Message } from '../../core/index.ts'
import { type Middleware, outputList } from '../middleware.ts'

/**
 * What a handler sends on says what it came from: `causationid` is the message handled, `correlationid` the first of
 * the whole chain. Ids that a handler set itself stay.
 */
export function correlation(): Middleware {
  return {
    name: 'correlation',
    wrap: (next) => async (message, context) => {
      const outputs = outputList(await next(message, context))
      return outputs.map((output) => caused(output, message))
    },
  }
}

export function caused(output: Message, by: Message): Message {
  const { correlationid = by.extensions['correlationid'] ?? by.id, causationid = by.id } = output.extensions
  return output.with({ extensions: { correlationid, causationid } })
}
