import { type Clock, type Message, telemetry } from '../core/index.ts'
import type { Delivery, Settlement } from './source.ts'
import { topicOf, topicOfDelivery } from './source.ts'

type Result = Settlement['kind']

/** Of one type, tenant and topic, with the same result. */
interface Group {
  readonly type: string
  readonly tenant: string | undefined
  /** Of a relay's only. */
  readonly topic: string | undefined
  readonly result: Result
  readonly ages: number[] | undefined
  count: number
  /** Milliseconds, of all of them. */
  took: number
}

/** Milliseconds. Shorter ones are reported together: to report each alone would cost more than to handle it. */
const SHORT = 0.1

/** An outbox that a flow publishes from. */
export interface FromTable {
  readonly table: string
  readonly system?: string | undefined
  /** By the clock of its store, in milliseconds since 1970. Absent: how old events are is not known. */
  readonly now?: (() => number) | undefined
}

/** Publishes which messages were handled, and how long that took. */
export class Handled<D extends Delivery<Message>> {
  readonly #flow: string
  readonly #clock: Clock
  readonly #from: FromTable | undefined
  readonly #counted: boolean
  #gathered: Group | undefined
  /** When the last one was done, as long as nothing but the next can have happened since. */
  #now = 0

  /** `counted: false`: each may be seen alone, and metrics count none of them. */
  constructor(flow: string, clock: Clock, from?: FromTable, counted = true) {
    this.#flow = flow
    this.#clock = clock
    this.#from = from
    this.#counted = counted
  }

  /** When a message goes out: now, or 0 when nobody listens. */
  begin(): number {
    if (!this.#counts && !telemetry['message.handled'].active) return 0
    const began = this.#now === 0 ? this.#clock.monotonic() : this.#now
    this.#now = 0
    return began
  }

  /** Those of a call that ended alike. */
  report(run: readonly D[], result: Result, error: unknown, began: number): void {
    if (began === 0) return
    const now = this.#clock.monotonic()
    this.#now = now
    const took = now - began
    if (this.#counts) {
      if (run.length === 1 && took < SHORT) this.#gather(run[0]!, result, took)
      else for (const group of this.#groups(run, result, took)) this.#publish(group)
    }
    if (!telemetry['message.handled'].active) return
    for (const delivery of run) {
      const { type, id, tenant } = delivery.message
      const topic = topicOfDelivery(delivery)
      const about = { type, id, tenant, topic, result, took, attempt: delivery.attempts + 1, error }
      telemetry['message.handled'].publish({ flow: this.#flow, ...about, ...this.#origin(delivery) })
    }
  }

  get #counts(): boolean {
    return this.#counted && telemetry['messages.handled'].active
  }

  /** What a relay knows beside: where the event came from, since when, and its trace. */
  #origin({ created, message }: D): object {
    if (this.#from === undefined) return {}
    const traceparent = message.extensions['traceparent']
    const { table, system, now } = this.#from
    return { table, system, created, storeTime: now?.(), traceparent }
  }

  /** Nothing more follows at once. */
  flush(): void {
    this.#now = 0
    if (this.#gathered === undefined) return
    this.#publish(this.#gathered)
    this.#gathered = undefined
  }

  #gather(delivery: D, result: Result, took: number): void {
    const group = this.#gathered
    const joins = group !== undefined && group.result === result && this.#fits(group, delivery)
    if (group !== undefined && !joins) this.#publish(group)
    this.#gathered = joins ? group : this.#groupOf(delivery, result)
    this.#add(this.#gathered!, delivery, took, this.#storeTime(result))
  }

  /** How many of each type, tenant and topic. Mostly they are all of one, or of a few; `took` is how long each took. */
  #groups(run: readonly D[], result: Result, took: number): readonly Group[] {
    const all: Group[] = []
    const storeTime = this.#storeTime(result)
    let group: Group | undefined
    for (const delivery of run) {
      if (group === undefined || !this.#fits(group, delivery)) {
        group = all.find((other) => this.#fits(other, delivery))
        if (group === undefined) {
          group = this.#groupOf(delivery, result)
          all.push(group)
        }
      }
      this.#add(group, delivery, took, storeTime)
    }
    return all
  }

  #fits({ type, tenant, topic }: Group, { message }: D): boolean {
    return type === message.type && tenant === message.tenant && (topic === undefined || topic === topicOf(message))
  }

  #groupOf({ message }: D, result: Result): Group {
    const { type, tenant } = message
    const topic = this.#from === undefined ? undefined : topicOf(message)
    const ages = result === 'done' && this.#from?.now !== undefined ? [] : undefined
    return { type, tenant, topic, result, ages, count: 0, took: 0 }
  }

  #storeTime(result: Result): number {
    return result === 'done' ? (this.#from?.now?.() ?? 0) : 0
  }

  #add(group: Group, { created }: D, took: number, storeTime: number): void {
    group.count++
    group.took += took
    if (created !== undefined && storeTime > 0) group.ages?.push(Math.max(0, storeTime - created))
  }

  #publish({ type, tenant, topic, result, ages, count, took }: Group): void {
    const about = { flow: this.#flow, type, tenant, result, count, took: took / count }
    const from = this.#from
    telemetry['messages.handled'].publish(from === undefined ? about : { ...about, table: from.table, topic, ages })
  }
}
