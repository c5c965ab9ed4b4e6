import {
  type Clock,
  checkOptions,
  type Duration,
  type Message,
  milliseconds,
  type RawMessage,
  Reject,
  systemClock,
  Unavailable,
  WaybillError,
} from '../core/index.ts'
import { OK, type Outcome, type Publisher } from '../flow/index.ts'
import { within } from './conformance.ts'

/** Which messages: by id, by type, or by a function. Absent: all of them. */
export interface Chosen {
  id?: string
  type?: string
  where?: (message: RawMessage) => boolean
  /** How often, in all. Default: until taken back. */
  times?: number
  /** What is said to have gone wrong. */
  error?: unknown
  /** For `fail`: when the destination wants to be asked again. */
  after?: Duration
}

/** What a collector does with what it gets. */
export interface CollectorOptions {
  name?: string
  ordered?: boolean
  /** How long it takes to answer. */
  delay?: Duration
  clock?: Clock
}

/**
 * A publisher for tests: keeps what arrived, and refuses what its rules refuse. Rules are asked newest
 * first; each method that adds one returns the way to take it back.
 */
export interface Collector extends Publisher {
  /** What arrived (outcome `ok`), in order. */
  readonly messages: readonly RawMessage[]
  /** What it was asked to publish, call by call. */
  readonly calls: readonly (readonly RawMessage[])[]
  /** These are refused, and may succeed later. */
  fail(chosen?: Chosen): () => void
  /** These are refused for good. */
  reject(chosen?: Chosen): () => void
  /** With these the destination as a whole is away. */
  down(chosen?: Chosen): () => void
  /** A call with one of these throws, and nothing of it arrives. */
  crash(chosen?: Chosen): () => void
  /** Calls from now on wait until the answer of this function is called. */
  hold(): () => void
  /** Resolves when so many have arrived; rejects after `limit` (real) milliseconds. */
  arrived(count: number, limit?: number): Promise<readonly RawMessage[]>
  clear(): void
}

interface OutcomeRule {
  readonly kind: 'failed' | 'rejected' | 'down' | 'crash'
  readonly chosen: Chosen
  left: number
}

/** A publisher that keeps what it was given, for tests. */
export function collector(options: CollectorOptions = {}): Collector {
  checkOptions('collector', options, { name: true, ordered: true, delay: true, clock: true })
  const delay = milliseconds(options.delay ?? 0, 'collector: delay')
  const clock = options.clock ?? systemClock
  const ordered = options.ordered ?? false
  const messages: RawMessage[] = []
  const calls: (readonly RawMessage[])[] = []
  const rules: OutcomeRule[] = []
  const waiting = new Set<() => void>()
  let held: Promise<void> | undefined

  const add = (kind: OutcomeRule['kind'], chosen: Chosen = {}) => {
    checkOptions(`collector: ${kind}`, chosen, {
      id: true,
      type: true,
      where: true,
      times: true,
      error: true,
      after: true,
    })
    const rule: OutcomeRule = { kind, chosen, left: chosen.times ?? Number.POSITIVE_INFINITY }
    rules.unshift(rule)
    return () => {
      const at = rules.indexOf(rule)
      if (at >= 0) rules.splice(at, 1)
    }
  }
  const judge = (message: RawMessage): Outcome | 'crash' => {
    const rule = rules.find(({ chosen, left }) => left > 0 && matches(chosen, message))
    if (rule === undefined) return OK
    rule.left--
    return rule.kind === 'crash' ? 'crash' : answer(rule.kind, rule.chosen)
  }

  return {
    name: options.name ?? 'collector',
    features: { ordered },
    messages,
    calls,
    async publish(batch) {
      calls.push([...batch])
      if (delay > 0) await clock.sleep(delay)
      while (held !== undefined) await held
      const verdicts = batch.map(judge)
      if (verdicts.includes('crash')) throw new Unavailable('the collector was told to crash')
      const outcomes = ordered ? inOrder(batch, verdicts as Outcome[]) : (verdicts as Outcome[])
      batch.forEach((message, i) => {
        if (outcomes[i]!.kind === 'ok') messages.push(message)
      })
      for (const look of waiting) look()
      return outcomes
    },
    fail: (chosen) => add('failed', chosen),
    reject: (chosen) => add('rejected', chosen),
    down: (chosen) => add('down', chosen),
    crash: (chosen) => add('crash', chosen),
    hold() {
      let letGo = () => {}
      const mine = new Promise<void>((resolve) => {
        letGo = resolve
      })
      held = mine
      return () => {
        if (held === mine) held = undefined
        letGo()
      }
    },
    async arrived(count, limit = 5000) {
      const enough = new Promise<void>((resolve) => {
        const look = () => {
          if (messages.length < count) return
          waiting.delete(look)
          resolve()
        }
        waiting.add(look)
        look()
      })
      await within(limit, enough, () => `${messages.length} of ${count} messages have arrived`)
      return messages
    },
    clear() {
      messages.length = 0
      calls.length = 0
    },
  }
}

function matches({ id, type, where }: Chosen, message: RawMessage): boolean {
  return (
    (id === undefined || message.id === id) &&
    (type === undefined || message.type === type) &&
    (where === undefined || where(message))
  )
}

function answer(kind: 'failed' | 'rejected' | 'down', { error, after }: Chosen): Outcome {
  switch (kind) {
    case 'failed': {
      const failed: Outcome = { kind, error: error ?? new WaybillError('TOLD_TO', 'the collector was told to fail') }
      return after === undefined ? failed : { ...failed, after: milliseconds(after, 'collector: after') }
    }
    case 'rejected':
      return { kind, error: error ?? new Reject('the collector was told to reject') }
    case 'down':
      return { kind, error: error ?? new Unavailable('the collector was told to be down') }
  }
}

/** As the port demands of an ordered publisher: when one of a key does not arrive, none after it does. */
function inOrder(batch: readonly Message[], outcomes: readonly Outcome[]): Outcome[] {
  const stopped = new Map<string, Outcome>()
  return batch.map(({ key }, i) => {
    const before = key === undefined ? undefined : stopped.get(key)
    const outcome = before ?? outcomes[i]!
    if (key !== undefined && before === undefined && outcome.kind !== 'ok') {
      stopped.set(key, outcome.kind === 'rejected' ? { kind: 'failed', error: outcome.error } : outcome)
    }
    return outcome
  })
}
