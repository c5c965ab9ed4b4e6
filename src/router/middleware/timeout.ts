import { timedCall } from '../../core/deadlines.ts'
import { blameless, type Clock, type Duration, milliseconds, systemClock } from '../../core/index.ts'
import type { Middleware } from '../middleware.ts'

/**
 * Ends a handler that takes too long: its signal aborts, and the message fails with TIMEOUT (transient). A handler that
 * ignores its signal goes on in the background, so a transaction inside looks at the signal before it commits.
 */
export function timeout(after: Duration, clock: Clock = systemClock): Middleware {
  const ms = milliseconds(after, 'timeout')
  return {
    name: 'timeout',
    refuses: ['transaction'],
    wrap: (next) => async (message, context) =>
      timedCall(`handling ${message.type}`, ms, clock, context.signal, async (signal) => {
        const inTime = () => !signal.aborted || context.signal.aborted
        try {
          const outputs = await next(message, { ...context, signal })
          if (inTime()) return outputs
        } catch (error) {
          // One that waited for something that is not the message's fault says so, even when it is late.
          if (inTime() || blameless(error)) throw error
        }
        throw signal.reason
      }),
  }
}
