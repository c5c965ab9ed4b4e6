import {
  type Clock,
  checkOptions,
  type Duration,
  milliseconds,
  type OptionNames,
  oneOf,
  systemClock,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { RETRY_DEFAULTS, type RetryOptions, type Source } from '../flow/index.ts'
import { type OutboxReader, READERS, type ReaderKind } from './reader.ts'

export interface OutboxSourceOptions {
  /** Default `auto`, see Relay. */
  reader?: ReaderKind
  lease?: Duration
  /** Those of the flow that reads it. */
  retry?: Pick<RetryOptions, 'attempts' | 'deadKey'>
  deleteOnPublish?: boolean
  wake?: boolean
  clock?: Clock
}

const OPTIONS: OptionNames<OutboxSourceOptions> = {
  reader: true,
  lease: true,
  retry: true,
  deleteOnPublish: true,
  wake: true,
  clock: true,
}

/**
 * An outbox as a source like any other, for a router or a flow of one's own: what is acked is published, what is nacked
 * waits for its next try. `retry` must be that of the flow that reads it.
 */
export function outboxSource(outbox: OutboxReader, options: OutboxSourceOptions = {}): Source {
  checkOptions('outboxSource', options, OPTIONS)
  checkOptions('outboxSource: retry', options.retry, { attempts: true, deadKey: true })
  if (typeof outbox?.reader !== 'function') {
    throw new WaybillError('INVALID_OPTION', 'outboxSource: give an outbox, such as postgres({ pool }).outbox')
  }
  const kind = oneOf('outboxSource: reader', options.reader ?? 'auto', READERS)
  const reader = outbox.reader({
    reader: kind,
    shards: 1,
    lease: milliseconds(options.lease ?? '60s', 'outboxSource: lease'),
    deadKey: oneOf('outboxSource: retry.deadKey', options.retry?.deadKey ?? RETRY_DEFAULTS.deadKey, [
      'block',
      'continue',
    ]),
    deletes: options.deleteOnPublish ?? false,
    wake: options.wake ?? true,
    attempts: wholeNumber('outboxSource: retry.attempts', options.retry?.attempts ?? RETRY_DEFAULTS.attempts),
    clock: options.clock ?? systemClock,
  })
  return {
    name: outbox.name,
    features: { redelivers: true, holdsKeys: kind !== 'lease' },
    async open(signal) {
      await outbox.check?.()
      const [source] = await reader.assignment()
      const session = await source?.open(signal)
      if (session === undefined) return undefined
      const close = session.close.bind(session)
      session.close = async () => {
        await close()
        await reader.close()
      }
      return session
    },
  }
}
