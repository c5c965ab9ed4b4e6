import {
  type Clock,
  checkOptions,
  type Duration,
  errorSummary,
  type Message,
  milliseconds,
  systemClock,
  telemetry,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { Task } from '../flow/index.ts'
import type { Intent, RedisDue } from './due.ts'

/** How often due events are looked for. */
export interface DueWorkerOptions {
  /** The event that an intent becomes. What it throws leaves the intent as it is, for the next round. */
  event: (intent: Intent) => Message | Promise<Message>
  name?: string
  /** Default every second. */
  every?: Duration
  /** How many are found at once. Default 100. */
  batch?: number
  /** Decides only what has been due for so long: time for a revocation that is still on its way. Default 0. */
  lag?: Duration
  clock?: Clock
}

/** What a round has decided. */
export interface Decided {
  readonly enqueued: number
  readonly already: number
  readonly suppressed: number
  /** Moved, or decided by another worker meanwhile. */
  readonly other: number
  /** No event could be made of them; they stay as they are. */
  readonly failed: number
}

/**
 * Decides intents whose time has come.
 *
 * 1. Each round goes once through all that is due, the earliest first, page by page.
 * 2. Each is decided on its own, in one script. Many workers do each intent once: the second finds it decided.
 * 3. One whose event cannot be made is told, and stands in nobody's way.
 */
export class DueWorker extends Task<Decided> {
  constructor(due: RedisDue, options: DueWorkerOptions) {
    checkOptions('due worker', options, { event: true, name: true, every: true, batch: true, lag: true, clock: true })
    if (typeof options.event !== 'function') {
      throw new WaybillError('INVALID_OPTION', 'due worker: event: give a function that makes the event of an intent')
    }
    const { every = '1s', clock = systemClock, event } = options
    const limit = wholeNumber('due worker: batch', options.batch ?? 100, { max: 10_000 })
    const lag = milliseconds(options.lag ?? 0, 'due worker: lag')
    const cutoff = () => (lag === 0 ? {} : { cutoff: new Date(clock.now() - lag) })
    super({ name: options.name ?? due.name, every, clock, run: (signal) => round(due, event, limit, cutoff, signal) })
  }
}

async function round(
  due: RedisDue,
  event: DueWorkerOptions['event'],
  limit: number,
  cutoff: () => { cutoff?: Date },
  signal: AbortSignal,
): Promise<Decided> {
  const counts = { enqueued: 0, already: 0, suppressed: 0, other: 0, failed: 0 }
  const until = cutoff()
  try {
    for (let page: readonly Intent[] = [], first = true; !signal.aborted; first = false) {
      if (!first && page.length < limit) break
      const after = page.at(-1)
      page = await due.find({ limit, ...until, ...(after === undefined ? {} : { after }) })
      // One after the other: those of a shard wait for each other anyway, and order is kept.
      for (const intent of page) {
        if (signal.aborted) break
        counts[await decide(due, event, intent, until)]++
      }
    }
  } finally {
    if (Object.values(counts).some((count) => count > 0)) {
      telemetry['due.decided'].publish({ due: due.name, ...counts })
    }
  }
  return counts
}

async function decide(
  due: RedisDue,
  event: DueWorkerOptions['event'],
  intent: Intent,
  until: { cutoff?: Date },
): Promise<keyof Decided> {
  let made: Message
  try {
    made = await event(intent)
  } catch (error) {
    const message = `no event could be made of an intent, which stays as it is: ${errorSummary(error)}`
    telemetry.warning.publish({ where: due.name, message })
    return 'failed'
  }
  const { outcome } = await due.decide(intent, made, until)
  if (outcome === 'enqueued' || outcome === 'suppressed') return outcome
  return outcome === 'already-enqueued' ? 'already' : 'other'
}
