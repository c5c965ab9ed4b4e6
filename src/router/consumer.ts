import { asError, checkOptions, type Message, onAbort, oneOf, telemetry, WaybillError } from '../core/index.ts'
import { FLOW_SETTINGS } from '../flow/flow-options.ts'
import {
  type Delivery,
  type EachStep,
  Flow,
  type FlowSettings,
  type PublisherLike,
  type Source,
  topicOfDelivery,
} from '../flow/index.ts'
import { ACKING, type Acking, acking, sharedAcking } from './acking.ts'
import { type Context, type Outputs, outputList, RETURNED } from './middleware.ts'
import { Batcher } from './outputs.ts'
import type { Router } from './router.ts'

/**
 * When a message is acked:
 * - `success`: when its handler returned and what it returned has arrived at its destination;
 * - `manual`: when the handler calls `ack` or `nack`; an error still nacks, and what no handler had to do with is acked (a
 *   duplicate that the inbox skipped, an unknown type that may pass, one that went to its dead-letter place);
 * - `forward`: its outputs carry the ack on (`ackingOf`); it is acked when all of them are, or at once when there are none.
 */
export const ACK_STRATEGIES = ['success', 'manual', 'forward'] as const
export type AckStrategy = (typeof ACK_STRATEGIES)[number]

/** How a router reads a source: concurrency, retries, time-outs, and where outputs go. */
export interface ConsumeOptions extends FlowSettings {
  name?: string
  ack?: AckStrategy
  /** Where outputs go, when no outbox takes them. */
  to?: PublisherLike
}

/** What sends outputs on. Resolves when they have arrived. */
export type Forward = (outputs: readonly Message[]) => unknown

/** A flow from a source to a router. */
export class Consumer<D extends Delivery<Message> = Delivery> extends Flow<D> {
  readonly #router: Router

  constructor(router: Router, source: Source<D>, options: ConsumeOptions = {}) {
    const { name = router.name, ack = 'success', to, ...settings } = options
    checkOptions(`consumer ${name}`, options, { name: true, ack: true, to: true, ...FLOW_SETTINGS })
    const strategy = oneOf(`consumer ${name}: ack`, ack, ACK_STRATEGIES)
    const forward = to === undefined ? refuseOutputs(router.name) : new Batcher(`consumer ${name}: to`, to).send
    super({
      name,
      from: source,
      step: stepOf(router, strategy, forward, source.system),
      phase: 'consumers',
      ...settings,
    })
    this.#router = router
  }

  protected override prepare(): void {
    this.#router.freeze()
  }
}

/** What handles a message: a router, or something in front of one. */
export type HandlesMessages = Pick<Router, 'name' | 'handle'>

/** What a consumer and an engine's input do with each delivery. */
export function stepOf(
  router: HandlesMessages,
  strategy: AckStrategy,
  forward: Forward,
  system?: string,
): EachStep<Delivery<Message>> {
  if (strategy === 'success') {
    return {
      each: (delivery, signal) =>
        router.handle(delivery.message, contextOf(router, delivery, signal, system, NOT_MANUAL)),
      after: (outputs) => sendOn(outputs as Outputs, forward),
    }
  }
  return { each: (delivery, signal) => settledByAck(router, strategy, forward, delivery, signal, system) }
}

/** What handlers get beside their message. Every field is always there, so that contexts are monomorphic. */
function contextOf(
  { name }: HandlesMessages,
  delivery: Delivery<Message>,
  signal: AbortSignal,
  system: string | undefined,
  { ack, nack }: Pick<Context, 'ack' | 'nack'>,
): Context {
  const topic = topicOfDelivery(delivery)
  return { signal, attempt: delivery.attempts + 1, topic, system, router: name, ack, nack }
}

function sendOn(outputs: Outputs, forward: Forward): unknown {
  const list = outputList(outputs)
  return list.length === 0 ? undefined : forward(list)
}

/** Resolves with the ack, rejects with the nack, whoever calls them and whenever. */
function settledByAck(
  router: HandlesMessages,
  strategy: AckStrategy,
  forward: Forward,
  delivery: Delivery<Message>,
  signal: AbortSignal,
  system: string | undefined,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const { message } = delivery
    let forget = () => {}
    const whole = acking(
      () => {
        forget()
        resolve()
      },
      (error) => {
        forget()
        reject(error)
      },
      (error) => telemetry['ack.failed'].publish({ type: message.type, id: message.id, error: asError(error) }),
    )
    if (!signal.aborted) forget = onAbort(signal, () => whole.nack(signal.reason))
    const manual = strategy === 'manual'
    const base = contextOf(router, delivery, signal, system, manual ? whole : NOT_MANUAL)
    let byHandler = false
    const returned = () => {
      byHandler = true
    }
    const context = manual ? { ...base, [RETURNED]: returned } : base
    const passed = async (outputs: Outputs) => {
      await sendOn(outputs, forward)
      if (!byHandler) whole.ack()
    }
    Promise.resolve()
      .then(() => router.handle(message, context))
      .then((outputs) => (manual ? passed(outputs) : passOn(outputs, whole, forward)))
      .catch((error) => whole.nack(error))
  })
}

async function passOn(outputs: Outputs, whole: Acking, forward: Forward): Promise<void> {
  const list = outputList(outputs)
  const parts = sharedAcking(whole, list.length)
  list.forEach((output, i) => {
    output.setLocal(ACKING, parts[i]!)
  })
  await sendOn(list, forward)
  for (const part of parts) part.ack()
}

function notManual(): never {
  throw new WaybillError(
    'NOT_MANUAL',
    "ack() and nack() are for consumers with ack: 'manual'; here the message is acked when the handler returns",
  )
}

/** Whether handlers ack and nack by themselves. */
export function isManual({ ack }: Context): boolean {
  return ack !== notManual
}

const NOT_MANUAL = { ack: notManual, nack: notManual }

function refuseOutputs(router: string): Forward {
  return (outputs) => {
    const types = [...new Set(outputs.map((output) => output.type))].join(', ')
    throw new WaybillError(
      'NO_OUTPUT',
      `router ${router}: a handler returned ${types}, but nothing takes outputs; give consume() a \`to\`, or use an outbox middleware`,
    )
  }
}
