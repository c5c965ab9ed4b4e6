import {
  type Clock,
  checkOptions,
  type Duration,
  milliseconds,
  oneOf,
  systemClock,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import type { Source } from '../flow/index.ts'
import { type OutboxReader, READERS, type ReaderKind } from './reader.ts'

export interface OutboxSourceOptions {
  /** Default `auto`, see Relay. */
  reader?: ReaderKind
  lease?: Duration
  attempts?: number
  deadKey?: 'block' | 'continue'
  deleteOnPublish?: boolean
  wake?: boolean
  clock?: Clock
}

const OPTIONS = ['reader', 'lease', 'attempts', 'deadKey', 'deleteOnPublish', 'wake', 'clock'] as const

/**
 * An outbox as a source like any other, for a router or a flow of one's own: what is acked is published, what is nacked
 * waits for its next try. `attempts` and `deadKey` must be those of the flow that reads it.
 */
export function outboxSource(outbox: OutboxReader, options: OutboxSourceOptions = {}): Source {
  checkOptions('outboxSource', options, OPTIONS)
  if (typeof outbox?.reader !== 'function') {
    throw new WaybillError('INVALID_OPTION', 'outboxSource: give an outbox, such as postgres({ pool }).outbox')
  }
  const kind = oneOf('outboxSource: reader', options.reader ?? 'auto', READERS)
  const reader = outbox.reader({
    reader: kind,
    shards: 1,
    lease: milliseconds(options.lease ?? '60s', 'outboxSource: lease'),
    deadKey: oneOf('outboxSource: deadKey', options.deadKey ?? 'block', ['block', 'continue']),
    deletes: options.deleteOnPublish ?? false,
    wake: options.wake ?? true,
    attempts: wholeNumber('outboxSource: attempts', options.attempts ?? 25),
    clock: options.clock ?? systemClock,
  })
  return {
    name: outbox.name,
    features: { redelivers: true, holdsKeys: kind !== 'lease' },
    async open(signal) {
      await outbox.check?.()
      const [source] = await reader.share()
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
