import { type Clock, type Settlement, warnOnce } from '../core/index.ts'
import { type Connection, textArray } from '../drivers/sql.ts'
import type { Demand } from '../flow/index.ts'
import { LowWater, START } from './low-water.ts'
import type { FillOptions, OutboxNames } from './names.ts'
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
import { Unsettled } from './unsettled.ts'

const LOOK_FOR_OPEN_KEYS_EVERY = 1000
const OPEN_KEYS_AT_ONCE = 200
/** Between two steps through the open keys, while there are more of them. */
const NEXT_OPEN_KEYS = 20
const SCAN_ALL_EVERY = 1000
/** While others are at work, timers that somebody else may have set are looked for this often. */
const READ_TIMERS_EVERY = 50
/** Where most are blocked, so many are read for each that is wanted. */
const MOST_PER_WANTED = 4
/** Who writes is asked at most this often, and only after this many rows. */
const WRITERS_EVERY = 50
const WRITERS_AFTER = 1000

/**
 * What the owner reads next. Three places hold what can be dispatched: `Ready`, `Timers` and `Held`, below. A take reads
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
  readonly #held: Held
  /** How many were given back. */
  #released = 0
  /** The last take found nothing anywhere. */
  #quiet = false
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
      connection: reader,
      clock,
      unsettled: new Unsettled(),
      sql: {
        ready: names.fill(twoRanges(sql['scan-ready']), fill),
        timers: text('scan-timers'),
        held: text('scan-held'),
        keys: text('open-keys'),
        look: text('look'),
        large: text('large-payloads'),
        writers: text('writers'),
      },
    }
    this.#ready = new Ready(this.#reading, options.readsAhead, options.numbersInOrder)
    this.#timers = new Timers(this.#reading)
    this.#held = new Held(this.#reading, this.#deadContinues)
  }

  /** Up to `demand`. `notified`: somebody has just said that there is something, so look first where new events are. */
  async take(demand: Demand, notified: boolean): Promise<Taken> {
    const released = this.#released
    if (!notified && this.#quiet && !(await this.look())) return NOTHING
    let found = NONE
    if (notified) {
      this.#held.lookAgain()
      found = await this.#read(demand, false)
    }
    if (isEmpty(found)) found = await this.#read(demand, true)
    this.#quiet = isEmpty(found)
    const taken = await this.#handOut(found, demand.bytes)
    if (this.#released === released) return taken
    // What was given back meanwhile may be before these, passed over as unsettled: put aside, they would overtake it.
    this.#leave(taken.held)
    return { ...taken, held: [] }
  }

  /** What each place that is due has. Due timers and open keys leave at least half to others, if those have anything. */
  async #read({ count, next = 0 }: Demand, everywhere: boolean): Promise<Found> {
    const { unsettled } = this.#reading
    const now = this.#clock.monotonic()
    const share = (of: number) => (this.#ready.empty ? of : (of + 1) >> 1)
    const isNew = (row: Row) => !unsettled.has(idOf(row))
    let timers: readonly Row[] = []
    let held: readonly Row[] = []
    if (this.#timers.due(now, everywhere)) timers = (await this.#timers.read(share(count))).filter(isNew)
    if (everywhere && this.#held.due(now)) held = (await this.#held.read(share(count - timers.length))).filter(isNew)
    if (timers.some(isInLine)) this.#ready.forget()
    // Always at least one, to notice when ready events are there again.
    const room = Math.max(1, count - timers.length - held.length)
    const factor = this.#factor
    const ready = (await this.#ready.read(Math.ceil(room * factor), Math.ceil(next * factor))).filter(isNew)
    const upTo = this.#ready.readUpTo
    const early = timers.filter((row) => isInLine(row) && !isBlocked(row) && numberOf(row) > upTo)
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
    const free = held.length === 0 ? rows : rows.filter((row) => !isBlocked(row))
    let decoded: Decoded = { deliveries: [], unreadable: [] }
    try {
      decoded = await deliveriesOf(this.#reading.connection, this.#reading.sql.large, withinBytes(free, bytes))
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
    return { deliveries, held, early, unreadable }
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
    this.#reading.unsettled.delete(delivery.eventId)
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
    this.#timers.next(timer === null ? Number.POSITIVE_INFINITY : Number(timer))
    return ready === 't' || timer === '0' || (blockers === 't' && this.#held.due(now))
  }

  /** Milliseconds until the next timer is due, or open keys are looked for again, as of the last look. */
  get nextTimer(): number {
    return Math.min(this.#timers.untilNext, this.#held.untilNext)
  }
}

/** What the places share. */
interface Reading {
  readonly table: string
  readonly connection: Connection
  readonly clock: Clock
  readonly unsettled: Unsettled
  readonly sql: Record<'ready' | 'timers' | 'held' | 'keys' | 'look' | 'large' | 'writers', string>
}

/**
 * Ready rows in order, without those that are unsettled: a row that commits late is simply found by the next scan, so
 * there is no cursor, and there are no gaps to get wrong. A scan begins at the low-water mark, and once a second at the
 * very left.
 *
 * While takes come full, the next rows are asked for before they are wanted, so that the server reads while this process
 * works. What was read ahead is forgotten as soon as anything but plain success is settled: it might have blocked one of
 * those rows.
 */
class Ready {
  /** The last read brought nothing. */
  empty = false
  /** Up to which number the last read has seen everything. */
  readUpTo = Number.POSITIVE_INFINITY
  readonly #reading: Reading
  readonly #readsAhead: boolean
  readonly #lowWater: LowWater
  #ahead: Scan | undefined
  /** Grows whenever what was read before may no longer be right. */
  #age = 0
  #allAt = 0
  #asked: Promise<void> = Promise.resolve()
  #sinceAsked = 0
  #askAt = 0

  constructor(reading: Reading, readsAhead: boolean, numbersInOrder: boolean) {
    this.#reading = reading
    this.#readsAhead = readsAhead
    this.#lowWater = new LowWater(numbersInOrder)
  }

  /** What was read ahead may no longer be right. */
  forget(): void {
    this.#age++
  }

  async read(count: number, next: number): Promise<readonly Row[]> {
    const ahead = this.#ahead
    this.#ahead = undefined
    let scan = ahead?.age === this.#age ? ahead : this.#scan(count)
    let rows = await scan.rows
    // Nothing ahead, when it was asked for: there may be something now.
    if (scan === ahead && (rows.length === 0 || ahead.age !== this.#age)) {
      scan = this.#scan(count)
      rows = await scan.rows
    }
    this.#scanned(scan, rows)
    if (rows.length > count) rows = rows.slice(0, count)
    this.empty = rows.length === 0
    this.readUpTo = rows.length < Math.min(count, scan.count) ? Number.POSITIVE_INFINITY : numberOf(rows.at(-1)!)
    this.#askWriters(rows.length)
    if (this.#readsAhead && next > 0 && rows.length === count && !rows.some(isBlocked)) {
      this.#ahead = this.#scan(next, rows)
      // Whoever wants them is told. Often enough nobody does.
      this.#ahead.rows.catch(() => {})
    }
    return rows
  }

  /** Where to begin now: every now and then at the very left, whatever the mark says. */
  begin(now: number): number {
    return now < this.#allAt ? this.#lowWater.value : START
  }

  /** A look from the very left that found something has not read it: the next scan begins there too. */
  looked(begin: number, found: boolean): void {
    if (begin === START && !found) this.#allAt = this.#reading.clock.monotonic() + SCAN_ALL_EVERY
  }

  async close(): Promise<void> {
    await this.#ahead?.rows.catch(() => {})
    await this.#asked
  }

  #scan(count: number, taken: readonly Row[] = []): Scan {
    const { clock, connection, sql, unsettled } = this.#reading
    const now = clock.monotonic()
    const { text, lowest, longest } = unsettled.ranges(taken)
    const begin = this.begin(now)
    if (begin === START) this.#allAt = now + SCAN_ALL_EVERY
    const { from, to } = longest ?? { from: begin, to: begin }
    const values = [String(count), text, ...[begin, from, Math.max(begin, to)].map(String)]
    const rows = connection.read('ready', sql.ready, values).then(inOrder)
    return { rows, count, age: this.#age, unsettled: lowest, safe: this.#lowWater.safe, mark: this.#lowWater.value }
  }

  #scanned({ unsettled, safe, mark }: Scan, rows: readonly Row[]): void {
    const lowest = rows.length === 0 ? Number.POSITIVE_INFINITY : numberOf(rows[0]!)
    if (lowest <= mark) {
      const { table } = this.#reading
      this.#lowWater.reset()
      warnOnce(
        'relay',
        `${table}: events appeared below numbers that were all settled: they were made ready by hand, or numbers are not drawn in order (setval, a restore, a cached sequence); such events are late by up to a second, and may come after later ones of their key`,
      )
    } else {
      this.#lowWater.scanned(lowest, rows.length === 0 ? START : numberOf(rows.at(-1)!), unsettled, safe)
    }
  }

  #askWriters(rows: number): void {
    const { clock, connection, sql } = this.#reading
    this.#sinceAsked += rows
    const now = clock.monotonic()
    if (this.#sinceAsked < WRITERS_AFTER || now < this.#askAt) return
    this.#sinceAsked = 0
    this.#askAt = now + WRITERS_EVERY
    this.#asked = connection.read('writers', sql.writers, []).then(
      (writers) => this.#lowWater.writers(writers.map(([writer]) => writer as string)),
      () => {},
    )
  }
}

/** Scheduled rows, retries and leases whose time has come. */
class Timers {
  /** Milliseconds until the next is due, as of the last look. */
  untilNext = Number.POSITIVE_INFINITY
  readonly #reading: Reading
  /** When one that is known is due. */
  #next = 0
  /** When to look for those that somebody else may have set. */
  #again = 0

  constructor(reading: Reading) {
    this.#reading = reading
  }

  due(now: number, everywhere: boolean): boolean {
    return now >= this.#next || (everywhere && now >= this.#again)
  }

  async read(count: number): Promise<readonly Row[]> {
    const { connection, sql, unsettled, clock } = this.#reading
    this.#next = Number.POSITIVE_INFINITY
    const rows = await connection.read('timers', sql.timers, [String(count), unsettled.ranges().text])
    this.#again = clock.monotonic() + READ_TIMERS_EVERY
    if (rows.length >= count) this.at(0)
    return rows
  }

  at(time: number): void {
    this.#next = Math.min(this.#next, time)
  }

  next(ms: number): void {
    this.untilNext = ms
    this.at(this.#reading.clock.monotonic() + ms)
  }

  settled({ state }: OutboxDelivery, settlement: Settlement): void {
    if (settlement.kind === 'retry') {
      this.untilNext = Math.min(this.untilNext, settlement.after)
      this.at(this.#reading.clock.monotonic() + settlement.after)
    } else if (settlement.kind === 'release' && state !== 'ready' && state !== 'held') this.at(0)
  }
}

/** Held rows of keys that nothing blocks any more. Keys are opened by settlements, and found by stepping through them. */
class Held {
  readonly #reading: Reading
  readonly #deadContinues: boolean
  readonly #open = new Set<string>()
  #cursor = ''
  #lookAt = 0

  constructor(reading: Reading, deadContinues: boolean) {
    this.#reading = reading
    this.#deadContinues = deadContinues
  }

  due(now: number): boolean {
    return this.#open.size > 0 || now >= this.#lookAt
  }

  get untilNext(): number {
    return this.#cursor === '' ? Number.POSITIVE_INFINITY : NEXT_OPEN_KEYS
  }

  /** A person may have removed what blocked a key. */
  lookAgain(): void {
    this.#lookAt = 0
  }

  open(key: string | undefined): void {
    if (key !== undefined) this.#open.add(key)
  }

  /** Some of each open key, so that none keeps the others waiting. A key that brought fewer has no more for now. */
  async read(count: number): Promise<readonly Row[]> {
    const { clock, connection, sql, unsettled } = this.#reading
    if (clock.monotonic() >= this.#lookAt) await this.#findOpen()
    const keys = [...this.#open].slice(0, count)
    if (keys.length === 0) return []
    const each = Math.ceil(count / keys.length)
    for (const key of keys) this.#open.delete(key)
    const values = [textArray(keys), String(each), unsettled.ranges().text, String(count)]
    const rows = await connection.read('held', sql.held, values).catch((error) => {
      for (const key of keys) this.#open.add(key)
      throw error
    })
    // Those that were cut off, and those of which there may be more, are read again.
    const found = new Map<string, number>()
    for (const row of rows) found.set(keyOf(row)!, (found.get(keyOf(row)!) ?? 0) + 1)
    for (const key of keys) if (rows.length >= count || (found.get(key) ?? 0) >= each) this.#open.add(key)
    return rows
  }

  settled({ key, state }: OutboxDelivery, { kind }: Settlement): void {
    if (key === undefined || state === 'ready') return
    if (kind === 'retry') this.#open.delete(key)
    else if (kind !== 'dead' || this.#deadContinues) this.#open.add(key)
  }

  /** A relay may have died between a settlement and the events it opened the key for. */
  async #findOpen(): Promise<void> {
    const { clock, connection, sql } = this.#reading
    const rows = await connection.read('open-keys', sql.keys, [this.#cursor, String(OPEN_KEYS_AT_ONCE)])
    for (const [key, open] of rows) if (open === 't') this.#open.add(key as string)
    const full = rows.length >= OPEN_KEYS_AT_ONCE
    this.#cursor = full ? (rows.at(-1)![0] as string) : ''
    this.#lookAt = clock.monotonic() + (full ? NEXT_OPEN_KEYS : LOOK_FOR_OPEN_KEYS_EVERY)
  }
}

/**
 * Two ranges in one statement, so one snapshot: from $3, the low-water mark, to $4, where the longest run of unsettled
 * numbers begins, and from $5, where it ends. Only single ones are walked over, not the thousands that were read together.
 */
function twoRanges(scan: string): string {
  const part = (between: string) => `(${scan.replace('{{between}}', () => between)})`
  const before = part('event.sequence > $3::text::bigint AND event.sequence < $4::text::bigint')
  return `${before}\nUNION ALL\n${part('event.sequence > $5::text::bigint')}\nLIMIT $1::text::int`
}

/** The places promise their own order, SQL promises none for two parts of a statement. */
function inOrder(rows: readonly Row[]): readonly Row[] {
  return rows.toSorted((a, b) => numberOf(a) - numberOf(b))
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
  return rows.filter((row) => read.has(idOf(row)) && numberOf(row) > (first.get(keyOf(row) ?? '') ?? Infinity))
}

/** A scan of ready rows, and what was known when it began. */
interface Scan {
  readonly rows: Promise<readonly Row[]>
  readonly count: number
  readonly age: number
  /** The lowest number that is unsettled. */
  readonly unsettled: number
  readonly safe: number
  readonly mark: number
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
}

const isEmpty = ({ rows, early }: Found): boolean => rows.length === 0 && early.length === 0
const NONE: Found = { rows: [], early: [] }
const NOTHING: Taken = { deliveries: [], held: [], early: [], unreadable: [] }
