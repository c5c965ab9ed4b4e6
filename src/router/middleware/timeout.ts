import {
  blameless,
  type Clock,
  type Duration,
  milliseconds,
  promised,
  systemClock,
  WaybillError,
} from '../../core/index.ts'
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
    wrap: (next) => async (message, context) => {
      const controller = new AbortController()
      const finished = new AbortController()
      const onAbort = () => controller.abort(context.signal.reason)
      if (context.signal.aborted) onAbort()
      else context.signal.addEventListener('abort', onAbort, { once: true })
      let over = false
      const late = clock.sleep(ms, finished.signal).then(() => {
        if (finished.signal.aborted) return new Promise<never>(() => {})
        const error = new WaybillError('TIMEOUT', `handling ${message.type} took longer than ${ms} ms`)
        over = true
        controller.abort(error)
        // One that says at once that it has waited for something that is not the message's fault knows better.
        return new Promise<never>((_, reject) => setImmediate(reject, error))
      })
      const work = promised(() => next(message, { ...context, signal: controller.signal })).then(
        (outputs) => (over ? late : outputs),
        (error) => {
          if (over && !blameless(error)) return late
          throw error
        },
      )
      try {
        return await Promise.race([work, late])
      } finally {
        finished.abort()
        context.signal.removeEventListener('abort', onAbort)
      }
    },
  }
}
