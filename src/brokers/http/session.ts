import { type Clock, Wakeup } from '../../core/index.ts'
import type { Demand, Session, Settled, Settlement } from '../../flow/index.ts'
import type { Arrivals, HttpDelivery, Reply } from './arrivals.ts'

export interface HttpSessionSettings {
  readonly arrivals: Arrivals
  readonly clock: Clock
  readonly onClose: () => void
}

/** Takes what requests brought, and responds to them by what became of it. */
export class HttpSession implements Session<HttpDelivery> {
  readonly #settings: HttpSessionSettings
  /** Never aborted: what is unsettled belongs to requests, which end one by one. */
  readonly lost: AbortSignal = new AbortController().signal
  readonly #unsettled = new Set<HttpDelivery>()
  readonly #wakeup: Wakeup
  #open = true

  constructor(settings: HttpSessionSettings) {
    this.#settings = settings
    this.#wakeup = new Wakeup(settings.clock)
  }

  async take(demand: Demand, signal: AbortSignal): Promise<readonly HttpDelivery[]> {
    if (!this.#open || signal.aborted) return []
    const taken = this.#settings.arrivals.take(demand)
    for (const delivery of taken) this.#unsettled.add(delivery)
    return taken
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const { arrivals } = this.#settings
    if (!this.#open || signal.aborted || arrivals.queued > 0) return
    await this.#wakeup.pause(ms, signal)
  }

  /** At the end of this turn: what other connections bring in it is taken together. */
  wake(): void {
    this.#wakeup.wakeSoon()
  }

  async settle(batch: readonly Settled<HttpDelivery>[]): Promise<number> {
    const { arrivals } = this.#settings
    const released: HttpDelivery[] = []
    let stale = 0
    for (const [delivery, settlement] of batch) {
      this.#unsettled.delete(delivery)
      if (settlement.kind === 'release') released.push(delivery)
      else if (!arrivals.settle(delivery, replyTo(settlement))) stale++
    }
    return stale + arrivals.giveBack(released)
  }

  async close(): Promise<void> {
    if (!this.#open) return
    this.#open = false
    this.#settings.arrivals.giveBack([...this.#unsettled])
    this.#unsettled.clear()
    this.wake()
    this.#settings.onClose()
  }
}

function replyTo(settlement: Exclude<Settlement, { kind: 'release' }>): Reply {
  if (settlement.kind === 'done') return 'done'
  return settlement.kind === 'dead' ? 'refused' : { later: settlement.after }
}
