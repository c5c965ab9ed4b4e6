import {
  checkOptions,
  describe,
  type EventKey,
  isUuid,
  type Message,
  Reject,
  RetryLater,
  telemetry,
  WaybillError,
} from '../core/index.ts'
import { type Context, type Middleware, Router } from '../router/index.ts'
import { SAGA } from '../router/replies.ts'
import { inbox, transaction } from '../store/middleware.ts'
import { change } from './client.ts'
import type { AnySaga } from './definition.ts'
import { endingsOf } from './endings.ts'
import { stored } from './json.ts'
import type { SagaDatabase, SagaRecord } from './port.ts'
import { type Command, find, isOver, type SagaState } from './state.ts'
import type { StepDefinition } from './step.ts'

/** The store, and the definitions whose sagas wait for replies. */
export interface SagaRepliesOptions<Tx> {
  store: SagaDatabase<Tx>
  /** Every definition of this service. Old versions too, while there are instances of them. */
  sagas: readonly AnySaga<Tx>[]
  /** The router's name, and the subscriber its inbox knows it by. Default `saga-replies`. */
  name?: string
  /** The most bytes of a reply's data, as JSON. Default 1 MiB. */
  maxBytes?: number
}

/** What a message of one type says about a step of one definition. */
interface Meaning {
  readonly saga: AnySaga
  readonly step: StepDefinition
  readonly means: 'reply' | 'refused' | 'undone'
}

interface ReplyContext<Tx> extends Context {
  readonly tx: Tx
  /** Called when the transaction has committed. */
  readonly afterCommit: (() => void)[]
}

/**
 * The router for the replies of all sagas of a service: consume with it what participants answer. Inbox, lock, decision,
 * write and the messages that follow are one commit. A reply of another service's saga is acked; one to a saga that is not
 * there (any more) is SAGA_GONE, for the dead letters.
 */
export function sagaReplies<Tx>(options: SagaRepliesOptions<Tx>): Router {
  checkOptions('saga replies', options, { store: true, sagas: true, name: true, maxBytes: true })
  const { store, sagas, name = 'saga-replies', maxBytes = 1024 * 1024 } = options
  if (store?.inbox === undefined)
    throw new WaybillError(
      'INVALID_OPTION',
      'saga replies: store: it has no inbox; give a store such as postgres({ pool, sagas: true })',
    )
  const meanings = meaningsOf(sagas)
  if (meanings.size === 0) {
    throw new WaybillError('INVALID_OPTION', 'saga replies: give sagas with requests: sagas: [fulfilment]')
  }
  const replies = new ReplyHandler(store, sagas, maxBytes)
  const router = new Router(name).use(publishing).use(transaction(store)).use(inbox(store.inbox))
  for (const [event, known] of meanings) {
    router.on(event, async (message, context) => {
      await replies.receive(message, known, context as unknown as ReplyContext<Tx>)
    })
  }
  return router
}

/** By event: one handler for each, whatever sagas wait for it. */
function meaningsOf(sagas: readonly AnySaga[]): ReadonlyMap<EventKey, Meaning[]> {
  const events = new Map<string, EventKey>()
  const meanings = new Map<EventKey, Meaning[]>()
  for (const saga of sagas) {
    for (const step of saga.steps) {
      for (const means of ['reply', 'refused', 'undone'] as const) {
        const event = step.replies?.[means]
        if (event === undefined) continue
        const known = events.get(`${event.type} ${event.target}`) ?? event
        events.set(`${event.type} ${event.target}`, known)
        meanings.set(known, [...(meanings.get(known) ?? []), { saga, step, means }])
      }
    }
  }
  return meanings
}

const ALIVE = ['running', 'compensating'] as const

/** Around the transaction: what is published about a saga has been committed. */
const publishing: Middleware = {
  name: 'saga telemetry',
  wrap: (next) => async (message, context) => {
    const afterCommit: (() => void)[] = []
    const outputs = await next(message, { ...context, afterCommit } as Context)
    for (const publish of afterCommit) publish()
    return outputs
  },
}

class ReplyHandler<Tx> {
  readonly #db: SagaDatabase<Tx>
  readonly #sagas: ReadonlyMap<string, AnySaga>
  readonly #names: ReadonlySet<string>
  readonly #most: number

  constructor(db: SagaDatabase<Tx>, sagas: readonly AnySaga[], most: number) {
    this.#db = db
    this.#sagas = new Map(sagas.map((saga) => [saga.definition, saga]))
    this.#names = new Set(sagas.map(({ name }) => name))
    this.#most = most
  }

  async receive(message: Message, known: readonly Meaning[], context: ReplyContext<Tx>): Promise<void> {
    const { type, id, step } = sagaOf(message)
    if (type === undefined || id === undefined) return this.#fromOutside(message, known, context)
    // Every service hears every event of a topic: this one is meant for another.
    if (!this.#names.has(type)) return
    if (step === undefined)
      throw new Reject(`${message}: it replies to saga ${id}, but has no extension ${SAGA.step}, which names the step`)
    const asked = known.filter((one) => one.step.name === step)
    await this.#apply(message, id, asked, context)
  }

  /** A message that carries no saga is for those of the aggregate it speaks of. */
  async #fromOutside(message: Message, known: readonly Meaning[], context: ReplyContext<Tx>): Promise<void> {
    const expected = known.filter(({ means, step }) => means !== 'undone' && step.replies?.correlate !== undefined)
    // Not a reply at all: an event of the same type that nobody asked for.
    if (expected.length === 0) return
    const ids = new Set<string>()
    for (const { saga, step } of expected) {
      const aggregate = step.replies!.correlate!(message.data as never)
      if (typeof aggregate !== 'string') {
        throw new Reject(`${message}: correlate of ${saga.name}.${step.name} returned ${describe(aggregate)}`)
      }
      const about = { type: saga.name, aggregate }
      const alive = await this.#db.sagas.list({ ...about, status: ALIVE }, { limit: 1000 }, context.tx)
      const found = alive.length > 0 ? alive : await this.#db.sagas.list(about, { limit: 1 }, context.tx)
      for (const one of found) ids.add(one.id)
    }
    if (ids.size === 0) throw gone(message, 'no saga waits for what it is about')
    for (const id of [...ids].sort()) await this.#apply(message, id, expected, context)
  }

  async #apply(message: Message, id: string, known: readonly Meaning[], { tx, afterCommit }: ReplyContext<Tx>) {
    const record = isUuid(id) ? await this.#db.sagas.load(tx, id, true) : undefined
    if (record === undefined) throw gone(message, `there is no saga ${id}, or it ended so long ago that it was removed`)
    const saga = this.#sagas.get(record.definition)
    if (saga === undefined) {
      throw new RetryLater(
        '10s',
        `saga ${id}: its definition ${record.definition} is not registered here; give it to the option sagas`,
      )
    }
    const mine = known.filter((one) => one.saga.definition === record.definition)
    // Of several steps that wait for such a message from outside, it is for the first that has not had its own.
    const meant = mine.find(({ step }) => find(record, step.name)?.executed !== true) ?? mine[0]
    if (meant === undefined) return
    const { step, means } = meant
    const command = commandOf(message, step.name, means, this.#most)
    const state = await change(this.#db, tx, saga, record, command)
    afterCommit.push(() => {
      publishReply(record, state, step.name, message, means)
      if (state !== undefined) endingsOf(this.#db.sagas).report(state)
    })
  }
}

function commandOf(message: Message, step: string, means: Meaning['means'], most: number): Command {
  if (means === 'refused') {
    return { type: 'refused', step, error: `Reject [REJECTED]: ${step} was refused: ${message.type}` }
  }
  if (means === 'undone') {
    const undo = message.extensions[SAGA.undo]
    return { type: 'undone', step, ...(undo === undefined ? {} : { undo: Number(undo) }) }
  }
  return { type: 'succeeded', step, output: stored(message.data, `the reply to ${step}`, most).value }
}

function sagaOf({ extensions }: Message) {
  const text = (name: string) => (typeof extensions[name] === 'string' ? (extensions[name] as string) : undefined)
  return { type: text(SAGA.type), id: text(SAGA.id), step: text(SAGA.step) }
}

/** For the dead letters: no later try can find it. */
class SagaGone extends Reject {
  override readonly code = 'SAGA_GONE'
}

function gone(message: Message, why: string): Reject {
  return new SagaGone(`${message}: ${why}`)
}

function publishReply(
  record: SagaRecord,
  state: SagaState | undefined,
  step: string,
  { id: reply }: Message,
  means: string,
) {
  const { id, type, tenant, traceparent, createdAt } = record
  const about = { type, id, tenant, traceparent }
  telemetry['saga.reply'].publish({ ...about, step, reply, means, changed: state !== undefined })
  if (state === undefined || !isOver(state) || state.status === record.status) return
  telemetry['saga.ended'].publish({
    ...about,
    status: state.status,
    took: Math.max(0, Date.now() - createdAt.getTime()),
  })
}
