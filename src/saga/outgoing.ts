import {
  classify,
  describe,
  errorSummary,
  type Message,
  nameUuid,
  Reject,
  WaybillError,
  withoutData,
} from '../core/index.ts'
import { isMessage } from '../core/message.ts'
import { SAGA } from '../router/replies.ts'
import type { AnySaga } from './definition.ts'
import { decide, evolve } from './machine.ts'
import type { SagaDatabase, SagaRecord } from './port.ts'
import { find, type SagaEvent, type SagaState, type StepState, undoKey } from './state.ts'
import { type Decision, resultsOf } from './work.ts'

/** A decision, and the messages that are enqueued with it. */
export interface Outgoing extends Decision {
  readonly messages: readonly Message[]
}

/** What a saga's messages say of it. */
export type About = Pick<SagaRecord, 'id' | 'type' | 'input' | 'tenant' | 'traceparent'>

/**
 * The messages of a decision: for each `Sent` the request, or its undo. One that cannot be made changes the decision:
 * nothing was sent, so that step is tried again later, or refused.
 */
export async function outgoing(
  saga: Pick<AnySaga, 'steps'>,
  about: About,
  before: SagaState,
  given: readonly SagaEvent[],
  onError?: (error: unknown) => never,
): Promise<Outgoing> {
  const messages: Message[] = []
  const events = [...given]
  let state = before
  for (let i = 0; i < events.length; i++) {
    const event = events[i]!
    const sent = evolve(state, event)
    if (event.type === 'Sent') {
      try {
        messages.push(await messageOf(saga, about, sent, find(sent, event.step)!))
      } catch (thrown) {
        onError?.(thrown)
        const shown = withoutData(thrown, { data: [about.input, resultsOf(state)] })
        const failed = decide(saga.steps, state, failureOf(saga, find(state, event.step)!, shown))
        events.splice(i, events.length, ...failed)
        i--
        continue
      }
    }
    state = sent
  }
  return { events, state, messages }
}

/** Enqueues them in the transaction of the write. Each carries its step's key, so that an undo never overtakes its request. */
export async function enqueue<Tx>(db: SagaDatabase<Tx>, tx: Tx, messages: readonly Message[]): Promise<void> {
  if (messages.length === 0) return
  if (db.outbox === undefined) {
    throw new WaybillError(
      'INVALID_OPTION',
      'sagas with requests need a store with an outbox; give one such as postgres({ pool, sagas: true })',
    )
  }
  await db.outbox.enqueue(tx, messages)
}

/** Of the nth message of a step. Each send has its own: an inbox would take the same for a repeat. */
function messageId({ key }: StepState, n: number): string {
  return nameUuid(5, key, `message ${n}`)
}

async function messageOf(
  saga: Pick<AnySaga, 'steps'>,
  about: About,
  state: SagaState,
  step: StepState,
): Promise<Message> {
  const { run, undoing, replies } = saga.steps.find(({ name }) => name === step.name)!
  const undoes = step.status === 'compensating'
  const made = undoes ? await undoing!(undoContext(about, state, step)) : await run(contextOf(about, state, step))
  if (!isMessage(made)) {
    const what = undoes ? 'undo' : 'send'
    throw new Reject(`${step.name}: ${what} returned ${describe(made)}; it must return a message`)
  }
  const { reply, refused, undone } = replies!
  const types = (undoes ? [undone] : [reply, refused]).flatMap((event) => event?.type ?? [])
  const { tenant, traceparent } = about
  return made.with({
    id: messageId(step, step.sends),
    extensions: {
      ...(tenant === undefined ? {} : { tenantid: tenant }),
      ...(traceparent === undefined ? {} : { traceparent }),
      ...made.extensions,
      partitionkey: step.key,
      [SAGA.type]: about.type,
      [SAGA.id]: about.id,
      [SAGA.step]: step.name,
      [SAGA.key]: step.key,
      ...(types.length === 0 ? {} : { [SAGA.replies]: types.join(' ') }),
      ...(undoes ? { [SAGA.undo]: step.undos } : {}),
    },
  })
}

function failureOf({ steps }: Pick<AnySaga, 'steps'>, step: StepState, error: Error) {
  const { backoff } = steps.find(({ name }) => name === step.name)!
  const { name, attempts } = step
  const permanent = error instanceof Reject || classify(error) === 'permanent'
  const times = { spent: attempts === 0 ? 0 : backoff(attempts), after: backoff(attempts + 1) }
  return { type: 'sendFailed', step: name, error: errorSummary(error), permanent, ...times } as const
}

/** What a function of a step is given, but for its signal. Each call gets its own: what it changes in them is nobody else's. */
export function contextOf(about: About, state: SagaState, { key, attempts }: StepState) {
  const { id, input, traceparent } = about
  const results = structuredClone(resultsOf(state))
  return { id, input: structuredClone(input), results, key, attempt: attempts + 1, traceparent }
}

export function undoContext(about: About, state: SagaState, step: StepState) {
  return { ...contextOf(about, state, step), undoKey: undoKey(step), output: structuredClone(step.output) }
}

/**
 * All that comes before the undo of a request. What is decided inside a transaction leaves that to a runner: whether a dead
 * message blocks it is looked up on another connection, and there may be none.
 */
export function beforeUndoing({ steps }: Pick<AnySaga, 'steps'>, events: readonly SagaEvent[]): readonly SagaEvent[] {
  const requests = steps.filter(({ kind }) => kind === 'request').map(({ name }) => name)
  const first = events.findIndex((event) => event.type === 'Undoing' && requests.includes(event.step))
  return first < 0 ? events : events.slice(0, first)
}

/** How many of a step's messages are looked up. */
const MOST_LOOKED_UP = 1000

/** What to say of a message of this step that is dead in the outbox: all later ones of its key wait behind it. */
export async function deadMessage({ outbox }: SagaDatabase, step: StepState): Promise<string | undefined> {
  if (outbox?.admin === undefined) return undefined
  // From the last one back: all before one that was published have gone out, or were put aside by a person.
  for (let n = step.sends; n > Math.max(0, step.sends - MOST_LOOKED_UP); n--) {
    const id = messageId(step, n)
    const state = (await outbox.admin.show(id))?.entry.state
    if (state === undefined || state === 'published') return undefined
    if (state === 'dead') return `${step.name}: event ${id} is dead in the outbox, and what follows it waits behind it`
  }
  return undefined
}
