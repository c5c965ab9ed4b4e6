import { errorSummary, telemetry, WaybillError } from '../core/index.ts'
import { type Demand, Lease, type Session, type Settled, type Source } from '../flow/index.ts'
import type { Term } from '../outbox/leadership.ts'
import type { ReaderOptions } from '../outbox/reader.ts'
import { Waiting } from '../outbox/waiting.ts'
import type { MemoryLeadership } from './leadership.ts'
import { deliveryOf, type MemoryDelivery, settleRow } from './row.ts'
import { BLOCKERS, type Table } from './table.ts'

export interface OwnerOptions extends ReaderOptions {
  readonly table: Table
  readonly leadership: MemoryLeadership
  /** All owners there are: what one that lost its term has not settled, the next must find. */
  readonly owners: Set<OwnerSession>
  readonly member: string
  readonly shard: number
}

/** The outbox read by its one owner, or one owner for each shard, in order per key. */
export function ownerSource(options: OwnerOptions): Source<MemoryDelivery> {
  const { table, shard, shards, lease, clock } = options
  const waiting = new Waiting(table.name, shard, lease, clock)
  return {
    name: shards === 1 ? table.name : `${table.name}/${shard}`,
    features: { redelivers: true, holdsKeys: true },
    waiting: waiting.status,
    async open() {
      const asked = options.clock.monotonic()
      const term = await options.leadership.acquire(options.member, shard, options.lease)
      if (term === undefined) {
        const other = (await options.leadership.terms()).find((one) => one.shard === shard)
        if (other !== undefined) waiting.for(other, 'another relay owns it')
        return undefined
      }
      waiting.over()
      for (const owner of options.owners) owner.checkTerm()
      table.partition(shards)
      const session = new OwnerSession(options, term, asked)
      session.begin()
      return session
    },
  }
}

export class OwnerSession implements Session<MemoryDelivery> {
  readonly afterCrash: boolean
  readonly extendEvery: number
  readonly #options: OwnerOptions
  readonly #term: Term
  readonly #unsettled = new Set<MemoryDelivery>()
  readonly #lost = new AbortController()
  readonly #lease: Lease
  #probe: string | undefined
  #wake: (() => void) | undefined

  constructor(options: OwnerOptions, term: Term, asked: number) {
    this.#options = options
    this.#term = term
    this.afterCrash = term.abandoned
    this.extendEvery = options.lease / 3
    this.#lease = new Lease(options.clock, options.lease)
    this.#lease.claimed(asked)
  }

  begin(): void {
    this.#options.owners.add(this)
    if (this.#term.probe !== undefined) this.#charge(this.#term.probe)
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  now(): number {
    return this.#options.table.now()
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose('LEASE_EXPIRED', `the term of ${this.#options.table.name} was not renewed in time`)
    return false
  }

  async take(demand: Demand): Promise<readonly MemoryDelivery[]> {
    const { table, owners, shard, deadKey, attempts } = this.#options
    this.checkTerm()
    for (const owner of owners) owner.checkTerm()
    if (this.#lost.signal.aborted) return []
    const taken: MemoryDelivery[] = []
    const claim = (row: MemoryDelivery['row']) => {
      row.delivery = deliveryOf(row)
      this.#unsettled.add(row.delivery)
      taken.push(row.delivery)
    }
    table.take(demand, { shard, blockers: BLOCKERS[deadKey], attempts, claim })
    return taken
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const { table, shard, wake, clock } = this.#options
    const due = Math.min(ms, table.nextIn(shard))
    if (due === 0 || signal.aborted) return
    const over = new AbortController()
    this.#wake = () => over.abort()
    if (wake) table.waiting.add(this.#wake)
    await clock.sleep(due, AbortSignal.any([signal, over.signal]))
    table.waiting.delete(this.#wake)
  }

  async settle(batch: readonly Settled<MemoryDelivery>[]): Promise<number> {
    const { table, deletes } = this.#options
    this.checkTerm()
    let stale = 0
    for (const [delivery, settlement] of batch) {
      const { row } = delivery
      // What is not here was settled before, or another has it now.
      if (!this.#unsettled.delete(delivery) || row.removed) stale++
      else {
        row.delivery = undefined
        settleRow(table, row, settlement, deletes)
      }
      if (row.eventId === this.#probe) await this.#recordProbe(undefined)
    }
    this.#wake?.()
    return stale
  }

  async recordProbe(delivery: MemoryDelivery): Promise<void> {
    await this.#recordProbe(delivery.row.eventId)
  }

  async close(): Promise<void> {
    this.#giveBack()
    await this.#options.leadership.release(this.#options.member, this.#term)
  }

  /** One whose term has passed on has nothing to settle any more. */
  checkTerm(): void {
    if (this.#options.leadership.holds(this.#term)) return
    this.#lose('TERM_LOST', `another relay has taken over ${this.#options.table.name}`)
    this.#giveBack()
  }

  #giveBack(): void {
    this.#options.owners.delete(this)
    for (const { row } of this.#unsettled) this.#options.table.giveBack(row)
    this.#unsettled.clear()
  }

  async extend(): Promise<void> {
    const { lease, member, leadership } = this.#options
    const asked = this.#lease.renewing()
    if (await leadership.renew(member, this.#term, lease)) this.#lease.renewed(asked, true)
    else this.checkTerm()
  }

  async #recordProbe(eventId: string | undefined): Promise<void> {
    this.#probe = eventId
    await this.#options.leadership.recordProbe(this.#term, eventId)
  }

  /** The relay before ended while this event was alone in flight. */
  #charge(eventId: string): void {
    const { table, attempts } = this.#options
    const row = table.rows.get(eventId)
    if (row === undefined || row.state === 'published' || row.state === 'dead') return
    const error = new WaybillError('CRASHED', 'the relay ended while this event was alone in flight')
    const delay = Math.min(60, 2 ** row.attempts) * 1000
    row.attempts++
    row.lastError = errorSummary(error)
    row.delivery = undefined
    if (row.attempts >= attempts) table.become(row, 'dead')
    else table.become(row, 'retrying', table.now() + delay)
    const { type, tenant } = row.message
    const about = { type, id: eventId, tenant, topic: row.topic, attempt: row.attempts }
    telemetry['message.suspected'].publish({ flow: table.name, error, ...about })
  }

  #lose(code: string, reason: string): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(new WaybillError(code, reason))
  }
}
