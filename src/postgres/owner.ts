import { type Clock, WaybillError } from '../core/index.ts'
import { answered } from '../drivers/sql/connection.ts'
import { type Database, numberArray, type Sql, textArray } from '../drivers/sql/sql.ts'
import { type Demand, Lease, RELEASE, type Session, type Settled, type Settlement, type Source } from '../flow/index.ts'
import type { Leadership, Term } from '../outbox/leadership.ts'
import { publishExpired, Waiting } from '../outbox/waiting.ts'
import { explained } from './errors.ts'
import { FittingSize } from './fitting-size.ts'
import type { PostgresLeadership } from './leadership.ts'
import type { FillOptions, OutboxNames } from './names.ts'
import { chargeProbe, Probe } from './probe.ts'
import { asideOf, publishAside, settleMixed, writeAside } from './put-aside.ts'
import { RelayConnections } from './relay-connections.ts'
import { heldBehind, type OutboxDelivery, type RowUpdate, unchanged, updateOf, updateValues } from './row.ts'
import { OwnerScan, type Taken } from './scan.ts'
import { sql } from './sql.generated.ts'
import { StoreClock } from './store-clock.ts'
import { checkTables } from './table-checks.ts'

export interface OwnerOptions {
  readonly db: Database
  readonly names: OutboxNames
  readonly leadership: PostgresLeadership
  /** Connections of open sessions, on which the relay renews its membership. */
  readonly open: Set<Sql>
  readonly member: string
  readonly shard: number
  readonly shards: number
  /** Milliseconds. */
  readonly lease: number
  readonly attempts: number
  readonly deadKey: 'block' | 'continue'
  readonly deletes: boolean
  readonly wake: boolean
  readonly prepare: boolean
  readonly clock: Clock
}

/** With so many events that are published and cannot be marked as such, no more are taken. */
const MOST_UNCHANGED = 100

/**
 * The outbox read by its one owner, or one owner for each shard. Nothing is written to take an event: the owner reads
 * what is pending in order, remembers what is unsettled, and settles a batch in one statement that is fenced by its
 * epoch. A row that commits late is found by a later scan, so there are no gaps to get wrong.
 */
export function ownerSource(options: OwnerOptions): Source<OutboxDelivery> {
  const { names, shard, shards, member, lease, clock } = options
  const waiting = new Waiting(names.table.text, shard, lease, clock)
  const another = async (leadership: Leadership) => {
    const terms = await answered(leadership.terms(), Math.max(1000, lease / 3), () => {})
    const other = terms.find((term) => term.shard === shard && term.holder !== member)
    if (other !== undefined) waiting.for(other, 'another relay owns it')
    return other !== undefined
  }
  return {
    name: shards === 1 ? names.table.text : `${names.table.text}/${shard}`,
    features: { redelivers: true, holdsKeys: true, leavesOut: true },
    waiting: waiting.status,
    async open() {
      // A relay that waits keeps no connection.
      if (await another(options.leadership)) return undefined
      const connections = await RelayConnections.open(options)
      try {
        const asked = clock.monotonic()
        const leadership = options.leadership.over(connections.writer)
        const term = await leadership.acquire(member, shard, lease)
        if (term === undefined) {
          // It was faster: who it is.
          await another(leadership)
          await connections.close(false)
          return undefined
        }
        waiting.over()
        const { numbersInOrder } = await checkTables(connections.reader, names, options.deletes)
        return await OwnerSession.begin(options, term, asked, connections, numbersInOrder)
      } catch (error) {
        options.open.delete(connections.writer)
        await connections.close(true)
        throw error
      }
    },
  }
}

class OwnerSession implements Session<OutboxDelivery> {
  readonly afterCrash: boolean
  readonly extendEvery: number
  readonly #options: OwnerOptions
  readonly #term: Term
  readonly #connections: RelayConnections
  readonly #leadership: PostgresLeadership
  readonly #scan: OwnerScan
  readonly #size = new FittingSize()
  readonly #lost = new AbortController()
  readonly #sql: Record<'published' | 'mixed' | 'aside' | 'unchanged' | 'remove', string>
  /** Events that were settled, and whose rows do not change. */
  readonly #unchanged = new Set<string>()
  readonly #lease: Lease
  readonly #storeClock: StoreClock
  readonly #probe: Probe
  #sleep: AbortController | undefined

  private constructor(
    options: OwnerOptions,
    term: Term,
    asked: number,
    connections: RelayConnections,
    numbersInOrder: boolean,
  ) {
    this.#options = options
    this.#term = term
    this.#connections = connections
    this.#leadership = options.leadership.over(connections.writer)
    this.#probe = new Probe(this.#leadership, term)
    this.afterCrash = term.abandoned
    this.extendEvery = options.lease / 3
    this.#lease = new Lease(options.clock, options.lease)
    this.#lease.claimed(asked)
    this.#storeClock = new StoreClock(options.clock)
    const { names, deadKey, shard, shards, deletes, clock } = options
    const fill: FillOptions = { deadKey, shard, shards }
    const readsAhead = !options.db.single
    this.#scan = new OwnerScan(connections.reader, names, fill, clock, { readsAhead, numbersInOrder })
    this.#sql = {
      published: names.fill(sql[deletes ? 'settle-deleted' : 'settle-published']),
      mixed: names.fill(settleMixed('wait')),
      aside: names.fill(settleMixed('skip')),
      unchanged: names.fill(sql['unchanged']),
      remove: names.fill(sql['delete-published']),
    }
    connections.onLost((error) => this.#lose(error))
    options.open.add(connections.writer)
  }

  static async begin(
    options: OwnerOptions,
    term: Term,
    asked: number,
    connections: RelayConnections,
    numbersInOrder: boolean,
  ): Promise<OwnerSession> {
    const session = new OwnerSession(options, term, asked, connections, numbersInOrder)
    await chargeProbe(connections.writer, options.names, term, options.attempts)
    await session.#storeClock.ask(connections.writer)
    return session
  }

  now(): number {
    return this.#storeClock.now()
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose(
      new WaybillError('LEASE_EXPIRED', `the term of ${this.#options.names.table.text} was not renewed in time`),
    )
    return false
  }

  take(demand: Demand): Promise<readonly OutboxDelivery[]> {
    return this.#size.take(demand.count, (count) => this.#take({ ...demand, count })).catch(this.#fail)
  }

  async #take(demand: Demand): Promise<readonly OutboxDelivery[]> {
    if (this.#unchanged.size >= MOST_UNCHANGED) throw unchanged(this.#options.names, this.#unchanged.size)
    const { wake } = this.#connections
    for (;;) {
      this.#connections.used()
      const taken = await this.#scan.take(demand, wake?.notified() ?? false)
      const { deliveries } = taken
      if (deliveries.length > 0) wake?.goBusy()
      const expired = deliveries.filter(({ state }) => state === 'leased').length
      publishExpired(this.#options.names.table.text, expired)
      const changed = await this.#putAside(taken)
      // Where all that was found is put aside or left out there may be more behind it.
      if (deliveries.length > 0 || !(changed || taken.leftOut > 0)) return deliveries
    }
  }

  /** Writes what becomes of rows that were read and not handed out. Returns whether there were any. */
  async #putAside(taken: Taken): Promise<boolean> {
    const rows = asideOf(taken)
    if (rows.length === 0) return false
    const { names } = this.#options
    try {
      const refused = await writeAside(rows, names, (update) => this.#mixed(update, 'aside'))
      publishAside(names, rows, refused)
      for (const { row } of refused) this.#scan.leaveOut(row)
    } catch (error) {
      // Nobody will settle these: they must be found again.
      for (const delivery of taken.deliveries) this.#scan.settled(delivery, RELEASE)
      throw error
    }
    this.#scan.putAside()
    return true
  }

  wait(ms: number, signal: AbortSignal): Promise<void> {
    return this.#wait(ms, signal).catch(this.#fail)
  }

  /** A table that is missing is named, with what to do. */
  readonly #fail = (error: unknown): never => {
    throw explained(error, `table ${this.#options.names.table.text}`)
  }

  async #wait(ms: number, signal: AbortSignal): Promise<void> {
    const { wake } = this.#connections
    const look = wake === undefined || (await wake.goIdle())
    if (look && (await this.#scan.look())) return
    const due = Math.min(ms, this.#scan.nextTimer, wake?.retryIn ?? ms)
    if (due === 0 || signal.aborted) return
    this.#sleep = new AbortController()
    const over = AbortSignal.any([signal, this.#sleep.signal])
    await (wake?.sleep(due, over) ?? this.#options.clock.sleep(due, over))
    this.#sleep = undefined
  }

  async settle(batch: readonly Settled<OutboxDelivery>[]): Promise<number> {
    try {
      return await this.#settle(batch)
    } catch (error) {
      const [[delivery, settlement]] = batch as [Settled<OutboxDelivery>]
      if (batch.length === 1 && this.#blocks(settlement)) this.#scan.stop(delivery)
      throw error
    }
  }

  async #settle(batch: readonly Settled<OutboxDelivery>[]): Promise<number> {
    const plain: OutboxDelivery[] = []
    const others: OutboxDelivery[] = []
    const mixed: RowUpdate[] = []
    const failing = new Set<string>()
    // By number, here and below: a relay of many events a second leaves half as much garbage here.
    for (let i = 0; i < batch.length; i++) {
      const delivery = batch[i]![0]
      const settlement = batch[i]![1]
      if (settlement.kind === 'release') continue
      if (settlement.kind === 'done' && delivery.state === 'ready') plain.push(delivery)
      else {
        others.push(delivery)
        mixed.push(updateOf(delivery, settlement))
      }
      if (delivery.key !== undefined && this.#blocks(settlement)) failing.add(delivery.key)
    }
    if (failing.size > 0) mixed.push(...heldBehind(failing, batch))
    let stale = 0
    if (plain.length > 0) stale += await this.#published(plain)
    if (mixed.length > 0) {
      const { holds, ids } = await this.#mixed(mixed)
      if (holds && ids.size < mixed.length) await this.#refuseUnchanged(others, (id) => !ids.has(id))
      stale += mixed.length - ids.size
    }
    for (let i = 0; i < batch.length; i++) {
      const delivery = batch[i]![0]
      this.#scan.settled(delivery, batch[i]![1])
      if (this.#unchanged.size > 0) this.#unchanged.delete(delivery.eventId)
      if (delivery.eventId === this.#probe.eventId) await this.#probe.clear()
    }
    // A retry sets a timer, and what was given back or unblocked is there to be taken: a wait must not oversleep it.
    if (plain.length < batch.length) this.#sleep?.abort()
    return stale
  }

  #blocks({ kind }: Settlement): boolean {
    return kind === 'retry' || (kind === 'dead' && this.#options.deadKey === 'block')
  }

  recordProbe({ eventId }: OutboxDelivery): Promise<void> {
    return this.#probe.record(eventId)
  }

  /** Renews the term, and finds out whether connections that are not used are still there. */
  async extend(): Promise<void> {
    await this.#connections.unlessClosed(Promise.all([this.#renew(), this.#connections.touch()]))
  }

  async close(): Promise<void> {
    const { writer } = this.#connections
    this.#options.open.delete(writer)
    const gone = this.#lost.signal.aborted
    if (!gone) {
      await this.#scan.close()
      await this.#leadership.release(this.#options.member, this.#term).catch(() => {})
    }
    await this.#connections.close(gone)
  }

  async #published(deliveries: readonly OutboxDelivery[]): Promise<number> {
    const ids = numberArray(deliveries.map(({ eventId }) => eventId))
    const values = [String(this.#term.shard), this.#term.epoch, ids]
    const [row] = await this.#connections.writer.read('settle-published', this.#sql.published, values)
    const stale = deliveries.length - Number(row?.[1] ?? 0)
    if (this.#holds(row) && stale > 0) await this.#refuseUnchanged(deliveries, (_, state) => state === 'ready')
    return stale
  }

  async #mixed(
    rows: readonly RowUpdate[],
    how: 'mixed' | 'aside' = 'mixed',
  ): Promise<{ holds: boolean; ids: ReadonlySet<string> }> {
    const values = [String(this.#term.shard), this.#term.epoch, ...updateValues(rows)]
    const [row] = await this.#connections.writer.read(`settle-${how}`, this.#sql[how], values)
    const ids = new Set(((row?.[1] as string | null) ?? '').split(',').filter(Boolean))
    const published = rows.filter((row) => row.becomes === 'published' && ids.has(row.id))
    // Two statements: a row that was changed by one part of a statement cannot be deleted by another part of it.
    if (this.#options.deletes && published.length > 0) {
      await this.#connections.writer.run('delete-published', this.#sql.remove, [
        textArray(published.map((row) => row.id)),
      ])
    }
    return { holds: this.#holds(row), ids }
  }

  /**
   * Fewer rows were changed than were settled. Some may be settled already, or removed by a person. One that is pending
   * all the same was passed over by a trigger or row-level security. Nothing of the batch counts as settled then: the flow
   * finds out which ones it is, and puts them aside. Until then they stay unsettled, and are not handed out again.
   */
  async #refuseUnchanged(
    settled: readonly OutboxDelivery[],
    suspect: (id: string, state: string) => boolean,
  ): Promise<void> {
    const ids = textArray(settled.map(({ eventId }) => eventId))
    const numbers = numberArray(settled.map(({ sequence }) => sequence))
    const pending = await this.#connections.writer.read('unchanged', this.#sql.unchanged, [ids, numbers])
    const found = pending.map(([id, state]) => [id, state] as [string, string]).filter((row) => suspect(...row))
    if (found.length === 0) return
    for (const [id] of found) this.#unchanged.add(id)
    throw unchanged(this.#options.names, found.length)
  }

  #holds(row: readonly (string | Uint8Array | null)[] | undefined): boolean {
    if (row?.[0] !== '0') return true
    this.#lose(new WaybillError('TERM_LOST', `another relay has taken over ${this.#options.names.table.text}`))
    return false
  }

  async #renew(): Promise<void> {
    const { lease, member } = this.#options
    const asked = this.#lease.renewing()
    const renewed = await this.#leadership.renew(member, this.#term, lease)
    if (renewed) this.#lease.renewed(asked, true)
    if (renewed) await this.#storeClock.ask(this.#connections.writer)
    else this.#lose(new WaybillError('TERM_LOST', `another relay has taken over ${this.#options.names.table.text}`))
  }

  #lose(reason: unknown): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(reason)
  }
}
