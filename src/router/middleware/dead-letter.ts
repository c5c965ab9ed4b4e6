import { type Classify, checkOptions, classifier, errorSummary, telemetry, withoutData } from '../../core/index.ts'
import type { PublisherLike } from '../../flow/index.ts'
import type { Middleware } from '../middleware.ts'
import { Batcher } from '../outputs.ts'

export interface DeadLetterMiddlewareOptions {
  to: PublisherLike
  classify?: Classify
}

/**
 * Sends a message that can never succeed to a place of its own, with the reason, and lets it count as handled. When
 * that place does not answer the message is not lost: it fails, and comes again.
 */
export function deadLetter(options: DeadLetterMiddlewareOptions): Middleware {
  checkOptions('deadLetter', options, { to: true, classify: true })
  const batcher = new Batcher('deadLetter: to', options.to)
  const kindOf = classifier(options.classify)
  return {
    name: 'dead-letter',
    refuses: ['transaction'],
    wrap: (next) => async (message, context) => {
      try {
        return await next(message, context)
      } catch (error) {
        if (kindOf(error) !== 'permanent') throw error
        const reason = errorSummary(withoutData(error, message))
        await batcher.send([
          message.with({
            extensions: { deadreason: reason, deadattempts: context.attempt, deadrouter: context.router },
          }),
        ])
        const { type, id, tenant } = message
        const { attempt, topic, router } = context
        telemetry['message.dead'].publish({ flow: router, type, id, reason, attempt, tenant, topic })
        return undefined
      }
    },
  }
}
