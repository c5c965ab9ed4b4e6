import { type Clock, errorSummary, telemetry, uuidv7, WaybillError } from '../core/index.ts'
import { type Database, numberArray, type Sql, textArray } from '../drivers/sql/sql.ts'
import { type Demand, Lease, RELEASE, type Session, type Settled, type Source } from '../flow/index.ts'
import { Quarantine } from '../outbox/quarantine.ts'
import { publishExpired } from '../outbox/waiting.ts'
import { RowClaims } from './claims.ts'
import { explained } from './errors.ts'
import { FittingSize } from './fitting-size.ts'
import { START } from './low-water.ts'
import type { OutboxNames } from './names.ts'
import { inHalves, refusalOf } from './put-aside.ts'
import { RelayConnections } from './relay-connections.ts'
import {
  aboutOf,
  attemptsOf,
  type Decoded,
  deliveriesOf,
  hasMoreExpired,
  idOf,
  isExpired,
  type OutboxDelivery,
  type Row,
  type RowUpdate,
  sequenceOf,
  stateOf,
  unchanged,
  updateOf,
  updateValues,
  withinBytes,
} from './row.ts'
import { sql } from './sql.generated.ts'
import { StoreClock } from './store-clock.ts'
import { checkTables } from './table-checks.ts'

export interface LeaseOptions {
  readonly db: Database
  readonly names: OutboxNames
  /** Milliseconds. */
  readonly lease: number
  readonly attempts: number
  readonly deletes: boolean
  readonly wake: boolean
  readonly prepare: boolean
  readonly clock: Clock
  /** Connections of open sessions, on which the relay renews its membership. */
  readonly open: Set<Sql>
  /** Whether this relay may read at all: relays that own the table keep it out. */
  readonly allowed: () => Promise<boolean>
}

/**
 * The outbox read by competing relays: each claims a batch with a token and an expiry, which it renews while it works.
 * A settlement is fenced by the token. There is no order between relays, nor per key.
 */
export function leaseSource(options: LeaseOptions): Source<OutboxDelivery> {
  return {
    name: options.names.table.text,
    features: { redelivers: true },
    async open() {
      if (!(await options.allowed())) return undefined
      const connections = await RelayConnections.open(options)
      try {
        await checkTables(connections.reader, options.names, options.deletes)
        const session = new LeaseSession(options, connections)
        await session.askTime()
        return session
      } catch (error) {
        await connections.close(true)
        throw error
      }
    },
  }
}

/** Ready events are looked for from the very left this often, and whenever there are not enough behind the last. */
const CLAIM_ALL_EVERY = 1000
const SOON = 50
/** Where that is: negative numbers are claimed too. */
const LEFT = String(START)

/** A claim under way; `claimed` is what it has brought so far. */
interface PendingClaim {
  readonly asked: number
  readonly rows: Promise<readonly Row[]>
  claimed: readonly Row[]
}

class LeaseSession implements Session<OutboxDelivery> {
  readonly extendEvery: number
  readonly #options: LeaseOptions
  readonly #connections: RelayConnections
  readonly #claims: RowClaims
  readonly #size = new FittingSize()
  readonly #token = uuidv7()
  readonly #lost = new AbortController()
  readonly #unsettled = new Map<string, OutboxDelivery>()
  /** Of those, what is still being worked on. A settlement that the table refuses keeps an event unsettled for long. */
  readonly #inProgress = new Set<string>()
  readonly #sql: Record<'settle' | 'published' | 'unchanged' | 'extend' | 'next', string>
  readonly #lease: Lease
  readonly #quarantine = new Quarantine()
  readonly #storeClock: StoreClock
  #waiting: AbortController | undefined
  #ahead: PendingClaim | undefined
  /** The highest number claimed so far, while claims come full. */
  #mark = LEFT
  #allAt = 0

  constructor(options: LeaseOptions, connections: RelayConnections) {
    this.#options = options
    this.#connections = connections
    this.#claims = new RowClaims(connections.reader, options.names, options.clock)
    this.#lease = new Lease(options.clock, options.lease)
    this.extendEvery = options.lease / 3
    this.#storeClock = new StoreClock(options.clock)
    const text = (name: keyof typeof sql) => options.names.fill(sql[name])
    this.#sql = {
      settle: text('lease-settle'),
      published: text(options.deletes ? 'lease-deleted' : 'lease-published'),
      unchanged: text('unchanged'),
      extend: text('lease-extend'),
      next: text('lease-next'),
    }
    connections.onLost((error) => this.#lose(error))
    options.open.add(connections.writer)
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  now(): number {
    return this.#storeClock.now()
  }

  askTime(): Promise<void> {
    return this.#storeClock.ask(this.#connections.writer)
  }

  live(): boolean {
    if (this.#lease.live) return true
    this.#lose(new WaybillError('LEASE_EXPIRED', 'the leases of claimed events could not be renewed in time'))
    return false
  }

  take(demand: Demand): Promise<readonly OutboxDelivery[]> {
    return this.#take(demand).catch(this.#fail)
  }

  /** A table that is missing is named, with what to do. */
  readonly #fail = (error: unknown): never => {
    throw explained(error, `table ${this.#options.names.table.text}`)
  }

  async #take({ count, bytes, prefetch = 0 }: Demand): Promise<readonly OutboxDelivery[]> {
    // What may have crashed a relay goes out with nothing else in progress.
    if (this.#quarantine.active && this.#inProgress.size > 0) return []
    const { wake, reader } = this.#connections
    this.#connections.used()
    if (wake?.notified()) this.#allAt = 0
    const { asked, rows } = this.#ahead ?? this.#ask(count)
    this.#ahead = undefined
    const claimed = await rows
    const wanted = withinBytes(claimed.slice(0, count), bytes)
    this.#more(claimed.slice(wanted.length), asked, claimed.length >= count ? prefetch : 0)
    const { deliveries, unreadable } = await deliveriesOf(reader, this.#options.names, wanted).catch((error) => {
      this.#keep(wanted, asked)
      throw error
    })
    if (unreadable.length > 0) await this.#settleUnreadable(unreadable)
    if (deliveries.length > 0) {
      this.#lease.claimed(asked)
      wake?.goBusy()
    }
    for (const delivery of deliveries) this.#unsettled.set(delivery.eventId, delivery)
    for (const { eventId } of deliveries) this.#inProgress.add(eventId)
    return deliveries
  }

  #ask(count: number): PendingClaim {
    const rows = this.#size.take(count, (fitting) => this.#claim(fitting))
    const claim: PendingClaim = { asked: this.#options.clock.monotonic(), rows, claimed: [] }
    claim.rows.then(
      (rows) => {
        claim.claimed = rows
      },
      () => {},
    )
    return claim
  }

  /** What was claimed and not wanted comes next. While claims come full, the next is made before it is wanted. */
  #more(left: readonly Row[], asked: number, prefetch: number): void {
    if (left.length > 0) this.#ahead = { asked, rows: Promise.resolve(left), claimed: left }
    else if (prefetch > 0 && !this.#quarantine.active) this.#ahead = this.#ask(prefetch)
  }

  /** Claimed, and could not be read now: they come next. Left alone, each would be charged when its lease runs out. */
  #keep(rows: readonly Row[], asked: number): void {
    const after = this.#ahead
    const kept: PendingClaim = {
      asked,
      claimed: rows,
      rows: (after?.rows ?? Promise.resolve([])).then(
        (more) => {
          kept.claimed = [...rows, ...more]
          return kept.claimed
        },
        () => rows,
      ),
    }
    this.#ahead = kept
  }

  async #claim(count: number): Promise<readonly Row[]> {
    const { lease, attempts, clock } = this.#options
    const now = clock.monotonic()
    if (now >= this.#allAt) {
      this.#allAt = now + CLAIM_ALL_EVERY
      this.#mark = LEFT
    }
    const hinted = this.#mark !== LEFT
    const expired = this.#quarantine.allowance(count, this.#inProgress.size)
    const limits = [String(lease), String(attempts), String(expired), this.#mark] as const
    const rows = await this.#claims.claim([String(count), this.#token, ...limits])
    this.#mark = rows.length >= count ? sequenceOf(rows.at(-1)!) : LEFT
    if (hinted && rows.length === 0) return this.#claim(count)
    const claimed = rows.filter((row) => stateOf(row) === 'leased')
    for (const row of rows) if (stateOf(row) === 'dead') this.#publishDead(row, attemptsOf(row), EXPIRED_REASON)
    const ranOut = rows.filter(isExpired).length
    publishExpired(this.#options.names.table.text, ranOut)
    this.#quarantine.claimed({ expired: ranOut > 0, moreExpired: rows.some(hasMoreExpired) })
    return rows.length > 0 && claimed.length === 0 ? this.#claim(count) : claimed
  }

  wait(ms: number, signal: AbortSignal): Promise<void> {
    return this.#wait(ms, signal).catch(this.#fail)
  }

  async #wait(ms: number, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options
    const { wake } = this.#connections
    if (this.#quarantine.active && this.#inProgress.size === 0) return
    this.#waiting = new AbortController()
    const over = AbortSignal.any([signal, this.#waiting.signal])
    // Under quarantine nothing else is claimed, so nobody need wake it.
    if (this.#quarantine.active) await clock.sleep(ms, over)
    // When the flag has just gone up, claim once more: earlier commits notified nobody.
    else if (!(await wake?.goIdle()) || Number.isFinite(wake!.retryIn)) {
      const due = Math.min(ms, await this.#nextDue(), wake?.retryIn ?? ms)
      await (wake?.sleep(due, over) ?? clock.sleep(due, over))
    }
    this.#waiting = undefined
  }

  /** What is due and was not claimed is being claimed by another: look again soon, not at once. */
  async #nextDue(): Promise<number> {
    const [row] = await this.#connections.reader.read('lease-next', this.#sql.next, [])
    return row === undefined ? Number.POSITIVE_INFINITY : Math.max(SOON, Number(row[0]))
  }

  async settle(batch: readonly Settled<OutboxDelivery>[]): Promise<number> {
    for (const [delivery] of batch) this.#inProgress.delete(delivery.eventId)
    const plain = batch.filter(([, { kind }]) => kind === 'done').map(([delivery]) => delivery.eventId)
    const others = batch.filter(([, { kind }]) => kind !== 'done')
    let changed = 0
    if (plain.length > 0) {
      changed += await this.#connections.writer.run('lease-published', this.#sql.published, [
        this.#token,
        textArray(plain),
      ])
    }
    if (others.length > 0)
      changed += await this.#become(others.map(([delivery, settlement]) => updateOf(delivery, settlement)))
    if (changed < batch.length) await this.#refuseUnchanged(batch)
    for (const [delivery] of batch) this.#unsettled.delete(delivery.eventId)
    this.#quarantine.settled(this.#inProgress.size)
    // What waits for the quarantine may go on, and a retry sets a timer. After plain success there is nothing new.
    if (others.length > 0 || (this.#quarantine.active && this.#inProgress.size === 0)) this.#waiting?.abort()
    return batch.length - changed
  }

  #become(rows: readonly RowUpdate[]): Promise<number> {
    const values = [this.#token, ...updateValues(rows)]
    return this.#connections.writer.run('lease-settle', this.#sql.settle, values)
  }

  /** One that did not change although it is still ours: see the owner. The flow finds out which ones, and puts them aside. */
  async #refuseUnchanged(batch: readonly Settled<OutboxDelivery>[]): Promise<void> {
    const ids = textArray(batch.map(([{ eventId }]) => eventId))
    const numbers = numberArray(batch.map(([{ sequence }]) => sequence))
    const pending = await this.#connections.writer.read('unchanged', this.#sql.unchanged, [ids, numbers])
    const ours = pending.filter(([, state, lease]) => state === 'leased' && lease === this.#token)
    if (ours.length > 0) throw unchanged(this.#options.names, ours.length)
  }

  extend(deliveries: readonly OutboxDelivery[]): Promise<void> {
    return this.#connections.unlessClosed(this.#extend(deliveries))
  }

  async #extend(deliveries: readonly OutboxDelivery[]): Promise<void> {
    const { lease, allowed } = this.#options
    const asked = this.#lease.renewing()
    const ahead = this.#ahead
    const ids = [...deliveries.map((delivery) => delivery.eventId), ...(ahead?.claimed ?? []).map(idOf)]
    if (ahead !== undefined && ahead.claimed.length > 0) this.#ahead = { ...ahead, asked }
    if (ids.length > 0) {
      await this.#connections.writer.run('lease-extend', this.#sql.extend, [this.#token, textArray(ids), String(lease)])
    }
    await this.#connections.touch()
    await this.askTime()
    if (!(await allowed())) this.#lose(new WaybillError('TERM_LOST', 'relays that own the table have taken over'))
    this.#quarantine.renewed(deliveries.length)
    this.#lease.renewed(asked, deliveries.length > 0)
  }

  /** What was not settled is given back: waiting for the end of its lease would cost it an attempt. */
  async close(): Promise<void> {
    const gone = this.#lost.signal.aborted
    const ahead = gone ? [] : await this.#ahead?.rows.catch(() => [])
    const left = [...this.#unsettled.values()].map((delivery) => updateOf(delivery, RELEASE))
    left.push(...(ahead ?? []).map(givenBack))
    this.#unsettled.clear()
    if (!gone && left.length > 0) await inHalves(left, (rows) => this.#become(rows))
    this.#options.open.delete(this.#connections.writer)
    await this.#connections.close(gone)
  }

  /**
   * What cannot be read costs only itself, also where the table refuses that it is dead: the others of its claim go on,
   * and it comes again when its lease has run out.
   */
  async #settleUnreadable(unreadable: Decoded['unreadable']): Promise<void> {
    for (const { row, reason } of unreadable) {
      const dead: RowUpdate = { id: idOf(row), becomes: 'dead', attempts: attemptsOf(row) + 1, error: reason }
      try {
        await this.#become([dead])
        this.#publishDead(row, dead.attempts, reason)
      } catch (thrown) {
        const about = { ...aboutOf(row), settlement: 'dead' as const, error: refusalOf(row, thrown) }
        telemetry['settlement.refused'].publish({ flow: this.#options.names.table.text, ...about, dead: false })
      }
    }
  }

  #publishDead(row: Row, attempt: number, reason: string): void {
    const table = this.#options.names.table.text
    telemetry['message.dead'].publish({ flow: table, table, reason, attempt, ...aboutOf(row) })
  }

  #lose(reason: unknown): void {
    if (!this.#lost.signal.aborted) this.#lost.abort(reason)
  }
}

const EXPIRED_REASON = errorSummary(new WaybillError('CRASHED', 'the leases of the relays that worked on it ran out'))

function givenBack(row: Row): RowUpdate {
  return { id: idOf(row), becomes: 'ready', attempts: attemptsOf(row) }
}
