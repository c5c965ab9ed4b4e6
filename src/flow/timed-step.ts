import { type Clock, type Message, WaybillError } from '../core/index.ts'
import type { Delivery } from './source.ts'
import { isThenable, type Step } from './step.ts'

/**
 * Ends a handler that takes longer than `ms`: its signal aborts, and its message has failed. One that ignores its signal
 * goes on in the background, so a transaction inside looks at the signal before it commits. Batches take their time.
 */
export function timedStep<D extends Delivery<Message>>(step: Step<D>, ms: number, clock: Clock): Step<D> {
  if (!('each' in step)) return step
  const { each } = step
  return {
    ...step,
    each(delivery, signal) {
      const controller = new AbortController()
      const onAbort = () => controller.abort(signal.reason)
      if (signal.aborted) onAbort()
      else signal.addEventListener('abort', onAbort, { once: true })
      const forget = () => signal.removeEventListener('abort', onAbort)
      let result: unknown
      try {
        result = each(delivery, controller.signal)
      } catch (error) {
        forget()
        throw error
      }
      if (isThenable(result)) return race(result, delivery.message.type, ms, clock, controller).finally(forget)
      forget()
      return result
    },
  }
}

async function race(
  work: PromiseLike<unknown>,
  type: string,
  ms: number,
  clock: Clock,
  controller: AbortController,
): Promise<unknown> {
  const finished = new AbortController()
  const late = clock.sleep(ms, finished.signal).then(() => {
    if (finished.signal.aborted) return undefined
    const error = new WaybillError('TIMEOUT', `handling ${type} took longer than ${ms} ms`)
    controller.abort(error)
    throw error
  })
  try {
    return await Promise.race([work, late.then(() => work)])
  } finally {
    finished.abort()
  }
}
