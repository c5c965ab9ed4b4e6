import { type Clock, WaybillError } from '../core/index.ts'
import type { Connection } from '../drivers/sql/sql.ts'
import type { Demand, Settlement } from '../flow/index.ts'
import { LeftOut } from './left-out.ts'
import { START } from './low-water.ts'
import type { FillOptions, OutboxNames } from './names.ts'
import { allKeys, HeldKeys, inOrder, type Reading, Ready, someKeys, Timers, twoRanges } from './places.ts'
import {
  type Decoded,
  deliveriesOf,
  idOf,
  isBlocked,
  keyOf,
  numberOf,
  type OutboxDelivery,
  type Row,
  stateOf,
  withinBytes,
} from './row.ts'
import { sql } from './sql.generated.ts'
import { UnsettledRows } from './unsettled.ts'

/** Where most are blocked, so many are read for each that is wanted. */
const MOST_PER_WANTED = 4

/** With so many that are left out no more are taken, before they are tried again. */
const MOST_LEFT_OUT = 10_000

/**
 * What the owner reads next. Three places hold what can be dispatched: `Ready`, `Timers` and `Held`, see places.ts. A take reads
 * each that is due, and parts what it found:
 *
 * - free: handed out, in the order of their numbers;
 * - blocked by an earlier event of its key: put aside as held, once, so that it is not read again and again;
 * - early: due, while ready events before it are not read yet. It becomes ready and waits for its turn.
 *
 * Timers are read first. What the ready scan then sees is no older: an event that was committed before a due one of its
 * key is among it.
 */
export class OwnerScan {
  readonly #clock: Clock
  readonly #reading: Reading
  readonly #deadContinues: boolean
  readonly #ready: Ready
  readonly #timers: Timers
  readonly #held: HeldKeys
  readonly #leftOut: LeftOut
  /** How many were given back. */
  #released = 0
  /** The last take found nothing anywhere. */
  #quiet = false
  /** Somebody said that there is something, and nothing was found: it may be left of where the scan began. */
  #inVain = false
  /** How many ready rows are read for each that is wanted: more, while some of them are blocked. */
  #factor = 1

  constructor(
    reader: Connection,
    names: OutboxNames,
    fill: FillOptions,
    clock: Clock,
    options: { readonly readsAhead: boolean; readonly numbersInOrder: boolean },
  ) {
    this.#clock = clock
    this.#deadContinues = fill.deadKey === 'continue'
    const text = (name: keyof typeof sql) => names.fill(sql[name], fill)
    this.#reading = {
      table: names.table.text,
      names,
      connection: reader,
      clock,
      unsettled: new UnsettledRows(),
      sql: {
        ready: names.fill(twoRanges(allKeys(sql['scan-ready'])), fill),
        timers: names.fill(allKeys(sql['scan-timers']), fill),
        held: text('scan-held'),
        keys: text('open-keys'),
        look: text('look'),
        writers: text('writers'),
      },
      sqlWithout: {
        ready: names.fill(twoRanges(someKeys(sql['scan-ready'], 6)), fill),
        timers: names.fill(someKeys(sql['scan-timers'], 3), fill),
      },
    }
    this.#ready = new Ready(this.#reading, options.readsAhead, options.numbersInOrder)
    this.#timers = new Timers(this.#reading)
    this.#held = new HeldKeys(this.#reading, this.#deadContinues)
    this.#leftOut = new LeftOut(this.#reading.unsettled, clock)
  }

  /** Up to `demand`. `notified`: somebody has just said that there is something, so look first where new events are. */
  async take(demand: Demand, notified: boolean): Promise<Taken> {
    const released = this.#released
    if (this.#leftOut.over()) this.#lookEverywhere()
    if (this.#leftOut.size >= MOST_LEFT_OUT) throw tooMany(this.#reading.table, this.#leftOut.size)
    if (!notified && this.#quiet && !(await this.look())) return NOTHING
    let found = NONE
    if (notified) {
      this.#held.lookAgain()
      found = await this.#read(demand, false)
    }
    if (isEmpty(found)) found = await this.#read(demand, true)
    // It may be a timer: one that is set again is due now, one that is new says how long to wait.
    if (notified && isEmpty(found) && (await this.look())) found = await this.#read(demand, true)
    this.#quiet = isEmpty(found)
    this.#inVain = this.#quiet && (notified || this.#inVain)
    const taken = await this.#handOut(found, demand.bytes)
    if (this.#released === released) return taken
    // What was given back meanwhile may be before these, passed over as unsettled: put aside, they would overtake it.
    this.#leave(taken.held)
    return { ...taken, held: [] }
  }

  /** What each place that is due has. While there are ready rows, timers get at most half, and held rows half of the rest. */
  async #read({ count, prefetch = 0, without }: Demand, everywhere: boolean): Promise<Found> {
    const { unsettled } = this.#reading
    const now = this.#clock.monotonic()
    const share = (of: number) => (this.#ready.empty ? of : (of + 1) >> 1)
    const isNew = (row: Row) => !unsettled.has(row)
    let timers: readonly Row[] = []
    let held: readonly Row[] = []
    if (this.#timers.due(now, everywhere)) timers = (await this.#timers.read(share(count), without)).filter(isNew)
    if (everywhere && this.#held.due(now))
      held = (await this.#held.read(share(count - timers.length), without)).filter(isNew)
    if (timers.some(isInLine)) this.#ready.forget()
    // Always at least one, to notice when ready events are there again.
    const room = Math.max(1, count - timers.length - held.length)
    const factor = this.#factor
    const wanted = Math.ceil(room * factor)
    const reading =
      without === undefined
        ? this.#ready.read(wanted, Math.ceil(prefetch * factor))
        : this.#ready.readWithout(without, wanted)
    const ready = (await reading).filter(isNew)
    const upTo = this.#ready.readUpTo
    // Also one that is blocked: held before those, it would be free before them.
    const early = timers.filter((row) => isInLine(row) && numberOf(row) > upTo)
    const others = early.length === 0 ? timers : timers.filter((row) => !early.includes(row))
    const rows = others.length + held.length === 0 ? ready : inOrder([...others, ...held, ...ready])
    return { rows: this.#cut(rows, count), early }
  }

  /** Up to the last that is wanted, with blocked ones before it. */
  #cut(rows: readonly Row[], count: number): readonly Row[] {
    let free = 0
    let end = 0
    for (; end < rows.length && free < count; end++) if (!isBlocked(rows[end]!)) free++
    if (free < end) this.#factor = Math.min(MOST_PER_WANTED, (1.1 * end) / Math.max(1, free))
    else this.#factor = 1
    if (end === rows.length) return rows
    this.#leave(rows.slice(end))
    return rows.slice(0, end)
  }

  /** Within the byte limit, and at least one. What does not fit is found again: it is not unsettled. */
  async #handOut({ rows, early }: Found, bytes: number): Promise<Taken> {
    const held = rows.filter(isBlocked)
    const unblocked = held.length === 0 ? rows : rows.filter((row) => !isBlocked(row))
    const free = this.#inTurn(unblocked)
    let decoded: Decoded = { deliveries: [], unreadable: [] }
    try {
      decoded = await deliveriesOf(this.#reading.connection, this.#reading.names, withinBytes(free, bytes))
    } finally {
      const { deliveries, unreadable } = decoded
      // Also what was read ahead: it may hold later ones of the same keys.
      if (deliveries.length < free.length) this.#leave(free.slice(deliveries.length + unreadable.length))
    }
    const { unreadable } = decoded
    let { deliveries } = decoded
    if (unreadable.length > 0 && !this.#deadContinues) {
      const behind = behindUnreadable(decoded, free)
      held.push(...behind)
      const ids = new Set(behind.map(idOf))
      deliveries = deliveries.filter(({ eventId }) => !ids.has(eventId))
    }
    for (const delivery of deliveries) {
      // Whoever let a lease run out may have died of it: that counts as an attempt.
      if (delivery.state === 'leased') delivery.attempts++
      this.#reading.unsettled.add(delivery.eventId, Number(delivery.sequence))
    }
    return { deliveries, held, early, unreadable, leftOut: unblocked.length - free.length }
  }

  /** Without those behind one of their key that is left out or stops it. */
  #inTurn(rows: readonly Row[]): readonly Row[] {
    if (!this.#leftOut.any) return rows
    for (const row of rows) if (this.#leftOut.isBehind(row)) this.#leftOut.add(row)
    return rows.filter((row) => !this.#leftOut.isBehind(row))
  }

  /** It could not be put aside. */
  leaveOut(row: Row): void {
    this.#leftOut.add(row)
  }

  /** It failed, and the table refuses to note that: its key stands still. */
  stop({ key, sequence }: OutboxDelivery): void {
    if (key !== undefined) this.#leftOut.stop(key, Number(sequence))
  }

  #lookEverywhere(): void {
    this.#ready.forget()
    this.#timers.at(0)
    this.#held.lookAgain()
    this.#quiet = false
  }

  /** These were read and not handed out: each place must find its own again. */
  #leave(rows: readonly Row[]): void {
    this.#ready.forget()
    this.#quiet = false
    for (const row of rows) {
      if (stateOf(row) === 'held') this.#held.open(keyOf(row))
      else if (stateOf(row) !== 'ready') this.#timers.at(0)
    }
  }

  /**
   * What the last take said of its rows is written. What blocked them may be settled by now: then its key is open, and
   * stays so until held rows are read again.
   */
  putAside(): void {
    this.#ready.forget()
    this.#quiet = false
  }

  settled(delivery: OutboxDelivery, settlement: Settlement): void {
    const { state } = delivery
    this.#reading.unsettled.delete(delivery.eventId, Number(delivery.sequence))
    if (this.#leftOut.any) this.#leftOut.goOn(delivery.key, Number(delivery.sequence))
    if (settlement.kind === 'release') this.#released++
    // A plain success blocks nobody, and nothing waits for it.
    if (settlement.kind === 'done' && state === 'ready') return
    this.#quiet = false
    this.#ready.forget()
    this.#timers.settled(delivery, settlement)
    this.#held.settled(delivery, settlement)
  }

  /** Nothing is being read any more. */
  close(): Promise<void> {
    return this.#ready.close()
  }

  /** Whether a take would find anything now. One cheap statement, for an idle relay. */
  async look(): Promise<boolean> {
    const { connection, sql, unsettled } = this.#reading
    const now = this.#clock.monotonic()
    const begin = this.#ready.begin(now)
    const [row] = await connection.read('look', sql.look, [unsettled.ranges().text, String(begin)])
    const [ready, timer, blockers] = row!
    this.#ready.looked(begin, ready === 't')
    if (begin === START) this.#inVain = false
    this.#timers.next(timer === null ? Number.POSITIVE_INFINITY : Number(timer))
    return ready === 't' || timer === '0' || (blockers === 't' && this.#held.due(now))
  }

  /** Milliseconds until the next timer is due, or something else is to be looked for, as of the last look. */
  get nextTimer(): number {
    const next = Math.min(this.#timers.untilNext, this.#held.untilNext)
    return this.#inVain ? Math.min(next, this.#ready.untilAll) : next
  }
}

/** A delayed event joins the order of its key when it is due. A retry has its place already: it holds back later ones. */
function isInLine(row: Row): boolean {
  return stateOf(row) === 'scheduled' && keyOf(row) !== undefined
}

/** Rows behind one that cannot be read, of its key: it is dead now, and blocks them. */
function behindUnreadable({ deliveries, unreadable }: Decoded, rows: readonly Row[]): readonly Row[] {
  const first = new Map<string, number>()
  for (const { row } of unreadable) {
    const key = keyOf(row)
    if (key !== undefined) first.set(key, Math.min(first.get(key) ?? Number.POSITIVE_INFINITY, numberOf(row)))
  }
  const read = new Set(deliveries.map(({ eventId }) => eventId))
  return rows.filter((row) => {
    const key = keyOf(row)
    return key !== undefined && read.has(idOf(row)) && numberOf(row) > (first.get(key) ?? Number.POSITIVE_INFINITY)
  })
}

interface Found {
  readonly rows: readonly Row[]
  readonly early: readonly Row[]
}

export interface Taken {
  readonly deliveries: readonly OutboxDelivery[]
  /** Blocked: to be put aside. */
  readonly held: readonly Row[]
  /** Due before their turn: to be put among the ready ones. */
  readonly early: readonly Row[]
  /** Not what a relay can read: to be dead. */
  readonly unreadable: Decoded['unreadable']
  /** How many were passed over, and are not read again for now. */
  readonly leftOut: number
}

function tooMany(table: string, count: number): WaybillError {
  const text = `${table}: ${count} events wait behind some that can be neither settled nor put aside; no more are taken until those are tried again, within a minute`
  return new WaybillError('NOT_SETTLED', text)
}

const isEmpty = ({ rows, early }: Found): boolean => rows.length === 0 && early.length === 0
const NONE: Found = { rows: [], early: [] }
const NOTHING: Taken = { deliveries: [], held: [], early: [], unreadable: [], leftOut: 0 }
