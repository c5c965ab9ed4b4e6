import { uuidv7, WaybillError } from '../core/index.ts'
import { type Demand, Lease, type Session, type Settled, type Source } from '../flow/index.ts'
import type { ReaderOptions } from '../outbox/reader.ts'
import type { OwnerSession } from './owner.ts'
import { deliveryOf, type MemoryDelivery, type Row, settleRow } from './row.ts'
import type { Table } from './table.ts'

export interface LeaseOptions extends ReaderOptions {
  readonly table: Table
  readonly owners: ReadonlySet<OwnerSession>
  /** Whether this relay may read at all: relays that own the outbox keep it out. */
  readonly allowed: () => Promise<boolean>
}

/** The outbox read by relays that compete: each claims what it takes, with a token and an expiry. There is no order. */
export function leaseSource(options: LeaseOptions): Source<MemoryDelivery> {
  return {
    name: options.table.name,
    features: { redelivers: true },
    async open() {
      if (!(await options.allowed())) return undefined
      options.table.partition(1)
      return new LeaseSession(options)
    },
  }
}

class LeaseSession implements Session<MemoryDelivery> {
  readonly extendEvery: number
  readonly #options: LeaseOptions
  readonly #token = uuidv7()
  readonly #claimed = new Set<Row>()
  readonly #lost = new AbortController()
  readonly #lease: Lease

  constructor(options: LeaseOptions) {
    this.#options = options
    this.#lease = new Lease(options.clock, options.lease)
    this.extendEvery = options.lease / 3
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  now(): number {
    return this.#options.table.now()
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose('LEASE_EXPIRED', 'the leases of claimed events could not be renewed in time')
    return false
  }

  async take(demand: Demand): Promise<readonly MemoryDelivery[]> {
    const { table, owners, lease, attempts, clock } = this.#options
    for (const owner of owners) owner.checkTerm()
    if (this.#lost.signal.aborted) return []
    const claim = (row: Row) => {
      row.lease = this.#token
      table.become(row, 'leased', table.now() + lease)
      this.#claimed.add(row)
    }
    const rows = table.take(demand, { shard: 0, blockers: [], attempts, claim })
    if (rows.length > 0) this.#lease.claimed(clock.monotonic())
    return rows.map(deliveryOf)
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const { table, wake, clock } = this.#options
    const due = Math.min(ms, table.nextIn(0))
    if (due === 0 || signal.aborted) return
    const over = new AbortController()
    const notified = () => over.abort()
    if (wake) table.waiting.add(notified)
    await clock.sleep(due, AbortSignal.any([signal, over.signal]))
    table.waiting.delete(notified)
  }

  async settle(batch: readonly Settled<MemoryDelivery>[]): Promise<number> {
    const { table, deletes } = this.#options
    let stale = 0
    for (const [{ row }, settlement] of batch) {
      if (this.#has(row)) settleRow(table, row, settlement, deletes)
      else stale++
      this.#claimed.delete(row)
    }
    return stale
  }

  async extend(deliveries: readonly MemoryDelivery[]): Promise<void> {
    const { table, lease, allowed } = this.#options
    const asked = this.#lease.renewing()
    for (const { row } of deliveries) if (this.#has(row)) table.become(row, 'leased', table.now() + lease)
    this.#lease.renewed(asked, deliveries.length > 0)
    if (!(await allowed())) this.#lose('TERM_LOST', 'relays that own the outbox have taken over')
  }

  async close(): Promise<void> {
    for (const row of this.#claimed) if (this.#has(row)) this.#options.table.become(row, 'ready')
    this.#claimed.clear()
  }

  /** Fenced by the token and its expiry: what another has claimed since is left alone. */
  #has(row: Row): boolean {
    const { lease, state, availableAt, removed } = row
    return lease === this.#token && state === 'leased' && availableAt! > this.#options.table.now() && !removed
  }

  #lose(code: string, reason: string): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(new WaybillError(code, reason))
  }
}
