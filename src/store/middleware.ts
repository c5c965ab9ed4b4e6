import { checkOptions, describe, isThenable, type Message, telemetry, WaybillError, warnOnce } from '../core/index.ts'
import { isManual } from '../router/consumer.ts'
import { type Context, caused, type Handle, type Middleware, type Outputs, outputList } from '../router/index.ts'
import { busy, type Inbox } from './inbox.ts'
import type { Outbox, Store } from './store.ts'
import type { UnitOfWork } from './unit-of-work.ts'

interface InTransaction<Tx> extends Context {
  readonly tx: Tx
}

/**
 * A transaction around everything inside: the handler finds it as `tx` in its context. It commits before the message is
 * acked, also where the handler acks by itself, and rolls back where it nacks. A handler that was asked to stop does not
 * commit afterwards, and one that goes on all the same loses its transaction; but once COMMIT is on its way nothing stops it.
 */
export function transaction<Tx>(unit: Pick<UnitOfWork<Tx>, 'withTransaction'>): Middleware<{ tx: Tx }> {
  checkCallable('transaction', unit, 'withTransaction', 'a store, such as db = postgres({ pool }): transaction(db)')
  return {
    name: 'transaction',
    gives: ['transaction'],
    refuses: ['transaction'],
    wrap: (next) => (message, context) => {
      const { signal } = context
      if (signal.aborted) return Promise.reject(signal.reason)
      const held = isManual(context) ? heldBack(context) : undefined
      const mayCommit = (returned: Outputs) => {
        signal.throwIfAborted()
        held?.unlessNacked()
        return returned
      }
      const committed = (returned: Outputs) => {
        held?.committed()
        return returned
      }
      return unit
        .withTransaction(
          async (tx) => {
            const inside: InTransaction<Tx> =
              held === undefined ? { ...context, tx } : { ...context, ack: held.ack, nack: held.nack, tx }
            return mayCommit(await next(message, inside))
          },
          { signal },
        )
        .then(committed)
    },
  }
}

/**
 * Ack and nack of a handler that settles by itself, until its transaction has committed. An ack waits for that. A nack fails
 * the transaction: what it did would be kept otherwise, and the inbox would skip the message when it comes again.
 */
function heldBack(outer: Context) {
  let said: 'ack' | 'nack' | undefined
  let reason: unknown
  let over = false
  const say = (what: 'ack' | 'nack', error?: unknown): boolean => {
    if (said !== undefined) return false
    said = what
    reason = error
    return true
  }
  return {
    ack: () => (over ? outer.ack() : say('ack')),
    nack: (error: unknown) => (over ? outer.nack(error) : say('nack', error)),
    unlessNacked() {
      if (said === 'nack') throw reason
    },
    committed() {
      over = true
      if (said === 'ack') outer.ack()
    },
  }
}

export interface InboxMiddlewareOptions {
  /** Under which name handled messages are remembered. Default: the router's. */
  subscriber?: string
  /**
   * What identifies a message: an id, together with the message's source, or both. An idempotency header, say:
   * `({ extensions }) => extensions.idempotencykey`. Where it returns nothing, and by default: the message's own.
   */
  key?: (message: Message) => string | { readonly source: string; readonly id: string } | undefined
}

/** Handles each message once: one that this subscriber has handled before skips the handler, and is acked. */
export function inbox<Tx>(store: Pick<Inbox<Tx>, 'receive'>, options: InboxMiddlewareOptions = {}): Middleware {
  checkCallable('inbox', store, 'receive', 'the inbox of a store: inbox(db.inbox)')
  checkOptions('inbox', options, { subscriber: true, key: true })
  const identityOf = identityFunction(options.key)
  const repeats = new Repeats()
  return {
    name: 'inbox',
    gives: ['inbox'],
    needs: ['transaction'],
    refuses: ['inbox'],
    wrap: (next) => (message, context) => {
      const { tx, router, signal } = context as InTransaction<Tx>
      const { source, id } = identityOf(message)
      const key = { subscriber: options.subscriber ?? router, source, id, message }
      return store.receive(tx, key, signal).then((answer) => {
        if (answer === 'busy') throw busy(message.toString())
        repeats.count(key.subscriber, answer)
        if (answer === 'new') return next(message, context)
        telemetry['inbox.duplicate'].publish({ subscriber: key.subscriber, type: message.type, id: message.id })
        return undefined
      })
    },
  }
}

/** Of so many messages in a row so many that were handled before are worth a word. */
const COUNTED = 100
const MANY = 20

/**
 * Two services with one subscriber name and one inbox each skip what the other has handled, and nothing fails. The only sign
 * is that much of what comes was handled before.
 */
class Repeats {
  #all = 0
  #repeated = 0

  count(subscriber: string, answer: 'new' | 'done'): void {
    this.#all++
    if (answer === 'done' && ++this.#repeated === MANY) {
      const text = `at least ${MANY} of ${COUNTED} messages in a row were handled before, and are skipped. After a crash, an outage or a replay that is right. Otherwise another service uses the name "${subscriber}" with the same inbox, and each skips what the other has handled: give their routers different names`
      warnOnce(`inbox of ${subscriber}`, text)
    }
    if (this.#all === COUNTED) this.#all = this.#repeated = 0
  }
}

interface Identity {
  readonly source: string
  readonly id: string
}

function identityFunction(key: InboxMiddlewareOptions['key']): (message: Message) => Identity {
  if (key === undefined) return (message) => message
  if (typeof key !== 'function') {
    throw new WaybillError(
      'INVALID_OPTION',
      `inbox: key: ${describe(key)} is not allowed; give a function of a message`,
    )
  }
  return (message) => {
    const made = key(message) ?? message
    if (typeof made === 'string') return { source: message.source, id: made }
    if (typeof made === 'object') return made
    const text = `inbox: key: the function returned ${describe(typeof made)}; it must return text, { source, id }, or nothing`
    throw new WaybillError('INVALID_OPTION', text)
  }
}

export interface OutboxMiddlewareOptions {
  /** Where outputs go: a fixed topic, or by event. Default: what the outbox does by itself. */
  topic?: string | ((event: Message) => string | undefined)
}

/**
 * Takes what the handler returns into the outbox, in the handler's transaction, and passes nothing on: a relay sends it
 * when the transaction has committed. Outputs say what they came from (`causationid`, `correlationid`).
 */
export function outbox<Tx>(store: Pick<Outbox<Tx>, 'enqueue'>, options: OutboxMiddlewareOptions = {}): Middleware {
  checkCallable('outbox', store, 'enqueue', 'the outbox of a store: outbox(db.outbox)')
  checkOptions('outbox', options, { topic: true })
  const topicOf = topicFunction(options.topic)
  return {
    name: 'outbox',
    gives: ['outbox'],
    needs: ['transaction'],
    refuses: ['outbox'],
    wrap: (next) => (message, context) => {
      const keep = (returned: Outputs) => {
        const outputs = outputList(returned)
        return outputs.length === 0 ? undefined : enqueue((context as InTransaction<Tx>).tx, message, outputs)
      }
      const returned = next(message, context)
      return isThenable(returned) ? Promise.resolve(returned).then(keep) : keep(returned)
    },
  }

  async function enqueue(tx: Tx, message: Message, outputs: readonly Message[]): Promise<undefined> {
    const events = outputs.map((output) => caused(output, message))
    for (const { topic, run } of runsByTopic(events, topicOf)) {
      await store.enqueue(tx, run, topic === undefined ? {} : { topic })
    }
  }
}

/** What callers without types may give in place of a store; else every message would be the first to say so. */
function checkCallable(where: string, given: unknown, method: string, instead: string): void {
  if (typeof (given as Record<string, unknown> | undefined)?.[method] === 'function') return
  throw new WaybillError('INVALID_OPTION', `${where}: ${describe(given)} has no ${method}(); give ${instead}`)
}

function topicFunction(topic: OutboxMiddlewareOptions['topic']): (event: Message) => string | undefined {
  if (typeof topic === 'function') return topic
  if (topic === undefined || (typeof topic === 'string' && topic !== '')) return () => topic
  throw new WaybillError('INVALID_OPTION', 'outbox: topic is a name, or a function from an event to a name')
}

/** One call for each run of the same topic, so that events stay in the order they were returned in. */
function runsByTopic(events: readonly Message[], topicOf: (event: Message) => string | undefined) {
  const runs: { readonly topic: string | undefined; readonly run: Message[] }[] = []
  for (const event of events) {
    const topic = topicOf(event)
    const last = runs.at(-1)
    if (last !== undefined && last.topic === topic) last.run.push(event)
    else runs.push({ topic, run: [event] })
  }
  return runs
}

/** What `transactional` uses of a Store. */
export interface Transactional<Tx> extends Pick<Store<Tx>, 'withTransaction'> {
  readonly inbox: Pick<Inbox<Tx>, 'receive'>
  readonly outbox: Pick<Outbox<Tx>, 'enqueue'>
}

export interface TransactionalOptions extends InboxMiddlewareOptions, OutboxMiddlewareOptions {}

/**
 * The three in their right order: BEGIN, inbox, handler, outputs into the outbox, COMMIT, and only then the ack. Where
 * data is spread over several stores, a function gives the one of a message.
 */
export function transactional<Tx>(
  db: (message: Message) => Transactional<Tx>,
  options?: TransactionalOptions,
): Middleware<{ tx: Tx }>
export function transactional<Tx>(db: Transactional<Tx>, options?: TransactionalOptions): Middleware<{ tx: Tx }>
export function transactional<Tx>(
  db: Transactional<Tx> | ((message: Message) => Transactional<Tx>),
  options: TransactionalOptions = {},
): Middleware<{ tx: Tx }> {
  checkOptions('transactional', options, { subscriber: true, key: true, topic: true })
  const about = { name: 'transactional', gives: ['transaction', 'inbox', 'outbox'], refuses: ['transaction'] } as const
  if (typeof db !== 'function') {
    const parts = partsOf(db, options)
    return { ...about, wrap: (next) => around(parts, next) }
  }
  return {
    ...about,
    wrap: (next) => {
      // Of each store once: they are few, and messages are many.
      const handles = new WeakMap<Transactional<Tx>, Handle>()
      return async (message, context) => {
        const store = db(message)
        let handle = handles.get(store)
        if (handle === undefined) {
          handle = around(partsOf(store, options), next)
          handles.set(store, handle)
        }
        return await handle(message, context)
      }
    },
  }
}

function partsOf<Tx>(db: Transactional<Tx>, { subscriber, key, topic }: TransactionalOptions): readonly Middleware[] {
  const instead = 'a store, such as db = postgres({ pool }): transactional(db), or a function that gives one'
  checkCallable('transactional', db, 'withTransaction', instead)
  return [
    transaction(db),
    inbox(db.inbox, { ...(subscriber === undefined ? {} : { subscriber }), ...(key === undefined ? {} : { key }) }),
    outbox(db.outbox, topic === undefined ? {} : { topic }),
  ]
}

function around(parts: readonly Middleware[], next: Handle): Handle {
  return parts.reduceRight((inner, part) => part.wrap(inner), next)
}
