import { type Clock, type Message, telemetry } from '../core/index.ts'
import type { Delivery, Settlement } from './source.ts'
import { topicOfDelivery } from './source.ts'

type Result = Settlement['kind']

/** Of one type and tenant, with the same result. */
interface Group {
  readonly type: string
  readonly tenant: string | undefined
  readonly result: Result
  count: number
  /** Milliseconds, of all of them. */
  took: number
}

/** Milliseconds. Whoever took less is told of together with others: to tell of each would cost more than to handle it. */
const SHORT = 0.1

/** Tells of messages that were handled, and of how long that took. */
export class Handled<D extends Delivery<Message>> {
  readonly #flow: string
  readonly #clock: Clock
  #gathered: Group | undefined
  /** When the last one was done, as long as nothing but the next can have happened since. */
  #now = 0

  constructor(flow: string, clock: Clock) {
    this.#flow = flow
    this.#clock = clock
  }

  /** When a message goes out: now, or 0 when nobody listens. */
  begin(): number {
    if (!telemetry['messages.handled'].active && !telemetry['message.handled'].active) return 0
    const began = this.#now === 0 ? this.#clock.monotonic() : this.#now
    this.#now = 0
    return began
  }

  /** Those of a call that ended alike. */
  tell(run: readonly D[], result: Result, error: unknown, began: number): void {
    if (began === 0) return
    const now = this.#clock.monotonic()
    this.#now = now
    const took = now - began
    if (telemetry['messages.handled'].active) {
      if (run.length === 1 && took < SHORT) this.#gather(run[0]!.message, result, took)
      else for (const group of groups(run, result, took)) this.#publish(group)
    }
    if (!telemetry['message.handled'].active) return
    for (const delivery of run) {
      const { type, id, tenant } = delivery.message
      const topic = topicOfDelivery(delivery)
      const about = { type, id, tenant, topic, result, took, attempt: delivery.attempts + 1, error }
      telemetry['message.handled'].publish({ flow: this.#flow, ...about })
    }
  }

  /** Nothing more follows at once. */
  flush(): void {
    this.#now = 0
    if (this.#gathered === undefined) return
    this.#publish(this.#gathered)
    this.#gathered = undefined
  }

  #gather({ type, tenant }: Message, result: Result, took: number): void {
    const group = this.#gathered
    if (group !== undefined && group.type === type && group.tenant === tenant && group.result === result) {
      group.count++
      group.took += took
      return
    }
    if (group !== undefined) this.#publish(group)
    this.#gathered = { type, tenant, result, count: 1, took }
  }

  #publish({ type, tenant, result, count, took }: Group): void {
    telemetry['messages.handled'].publish({ flow: this.#flow, type, tenant, result, count, took: took / count })
  }
}

/** How many of each type and tenant. Mostly they are all of one, or of a few; `took` is how long each took. */
function groups(run: readonly Delivery<Message>[], result: Result, took: number): readonly Group[] {
  const all: Group[] = []
  let group: Group | undefined
  for (const { message } of run) {
    const { type, tenant } = message
    if (group?.type !== type || group.tenant !== tenant) {
      group = all.find((other) => other.type === type && other.tenant === tenant)
      if (group === undefined) {
        group = { type, tenant, result, count: 0, took: 0 }
        all.push(group)
      }
    }
    group.count++
    group.took += took
  }
  return all
}
