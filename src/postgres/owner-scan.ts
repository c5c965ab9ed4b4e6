import type { Clock, Settlement } from '../core/index.ts'
import { type Connection, textArray } from '../drivers/sql.ts'
import type { Demand } from '../flow/index.ts'
import type { FillOptions, OutboxNames } from './names.ts'
import { Floor } from './owner-floor.ts'
import { Ranges } from './ranges.ts'
import { deliveriesOf, isBlocked, keyOf, numberOf, type OutboxDelivery, type Row, withinBytes } from './row.ts'
import { sql } from './sql.generated.ts'

const LOOK_FOR_OPEN_KEYS_EVERY = 1000
const OPEN_KEYS_AT_ONCE = 200
const SCAN_ALL_EVERY = 1000
/** Who writes is asked at most this often, and only after this many rows. */
const WRITERS_EVERY = 50
const WRITERS_AFTER = 1000

/**
 * What the owner reads next. Three places hold what can be dispatched:
 *
 * - ready rows in order, without those in hand: a row that commits late is simply found by the next scan, so there is
 *   no cursor, and there are no gaps to get wrong;
 * - timers: scheduled rows and retries whose time has come;
 * - held rows of keys that nothing blocks any more.
 *
 * A row that an earlier one of its key blocks is not handed out but put into the held lane, once, so that it need not
 * be read again and again.
 *
 * While takes come full, the next ready rows are asked for before they are wanted, so that the server reads while this
 * process works. What was read ahead is forgotten as soon as anything but plain success is settled: it might have
 * blocked one of those rows.
 */
export class OwnerScan {
  readonly #reader: Connection
  readonly #clock: Clock
  readonly #sql: Record<'ready' | 'timers' | 'held' | 'keys' | 'look' | 'large' | 'writers', string>
  readonly #deadContinues: boolean
  readonly #inHand = new Ranges()
  readonly #openKeys = new Set<string>()
  readonly #looksAhead: boolean
  #ahead: Scan | undefined
  /** How many are wanted next, should this take come full. */
  #next = 0
  /** Grows whenever what was read before may no longer be right. */
  #age = 0
  /** How many were given back. */
  #released = 0
  readonly #floor = new Floor()
  #asked: Promise<void> = Promise.resolve()
  #sinceAsked = 0
  #askAt = 0
  #allAt = 0
  #timersAt = 0
  #keysAt = 0
  #keyCursor = ''
  #nextTimer = Number.POSITIVE_INFINITY
  /** The last take found nothing anywhere. */
  #quiet = false

  constructor(reader: Connection, names: OutboxNames, fill: FillOptions, clock: Clock, looksAhead: boolean) {
    this.#reader = reader
    this.#looksAhead = looksAhead
    this.#clock = clock
    this.#deadContinues = fill.deadKey === 'continue'
    const text = (name: keyof typeof sql) => names.fill(sql[name], fill)
    this.#sql = {
      ready: names.fill(steppingOver(sql['scan-ready']), fill),
      timers: text('scan-timers'),
      held: text('scan-held'),
      keys: text('open-keys'),
      look: text('look'),
      large: text('large-payloads'),
      writers: text('writers'),
    }
  }

  /**
   * Up to `demand`, and what is blocked among what was read. `rung`: somebody has just said that there is something, so
   * look where new events are and hand them out before looking anywhere else.
   */
  async take({ count, bytes, next = 0 }: Demand, rung: boolean): Promise<Taken> {
    this.#next = this.#looksAhead ? next : 0
    const released = this.#released
    const found: Row[] = []
    const blocked: Row[] = []
    const add = (rows: readonly Row[]) => {
      for (const row of rows) if (!this.#inHand.has(numberOf(row))) (isBlocked(row) ? blocked : found).push(row)
    }
    if (rung) {
      this.lookEverywhere()
      add(await this.#ready(count))
    } else if (this.#quiet && !(await this.look())) {
      return NOTHING
    }
    // Where all that was found is blocked, that is enough for now: read again, one might come that is blocked no more.
    if (found.length === 0 && blocked.length === 0) await this.#everywhere(count, found, add)
    this.#quiet = found.length === 0 && blocked.length === 0
    const deliveries = await this.#deliveries(found, bytes)
    // What was given back meanwhile may be before these, passed over as in hand: put aside, they would overtake it.
    return { deliveries, blocked: this.#released === released ? blocked : [] }
  }

  async #everywhere(count: number, found: readonly Row[], add: (rows: readonly Row[]) => void): Promise<void> {
    const now = this.#clock.monotonic()
    if (now >= this.#timersAt) add(await this.#timers(count))
    if (now >= this.#keysAt) await this.#findOpenKeys()
    if (this.#openKeys.size > 0 && found.length < count) add(await this.#held(count - found.length))
    if (found.length < count) add(await this.#ready(count - found.length))
  }

  /** These are in the held lane now. Whether something still blocks them is looked at next time. */
  held(rows: readonly Row[]): void {
    this.#age++
    for (const row of rows) {
      const key = keyOf(row)
      if (key !== undefined) this.#openKeys.add(key)
    }
  }

  settled(delivery: OutboxDelivery, settlement: Settlement): void {
    this.#inHand.delete(Number(delivery.sequence))
    const { key } = delivery
    if (settlement.kind !== 'done' || delivery.state !== 'ready') this.#age++
    if (settlement.kind === 'release') {
      this.#released++
      this.lookEverywhere()
    } else if (settlement.kind === 'retry') {
      this.#timersAt = Math.min(this.#timersAt, this.#clock.monotonic() + settlement.after)
      this.#nextTimer = Math.min(this.#nextTimer, settlement.after)
      this.#quiet = false
      if (key !== undefined) this.#openKeys.delete(key)
    } else if (key !== undefined && delivery.state !== 'ready') {
      if (settlement.kind === 'done' || this.#deadContinues) {
        this.#openKeys.add(key)
        this.#quiet = false
      }
    }
  }

  /** Nothing that was known about emptiness counts any more. */
  lookEverywhere(): void {
    this.#timersAt = 0
    this.#keysAt = 0
    this.#quiet = false
    this.#age++
  }

  /** Nothing is being read any more. */
  async close(): Promise<void> {
    await this.#ahead?.rows.catch(() => {})
    await this.#asked
  }

  /** Whether a take would find anything now. One cheap statement, for an idle relay. */
  async look(): Promise<boolean> {
    const [row] = await this.#reader.read('look', this.#sql.look, [String(this.#inHand), String(this.#begin())])
    const [ready, timer, blockers] = row!
    this.#nextTimer = timer === null ? Number.POSITIVE_INFINITY : Number(timer)
    const keys = blockers === 't' && this.#clock.monotonic() >= this.#keysAt
    const anything = ready === 't' || this.#nextTimer === 0 || keys
    if (this.#nextTimer === 0) this.#timersAt = 0
    return anything
  }

  /** Milliseconds until the next timer is due, as of the last look. */
  get nextTimer(): number {
    return this.#nextTimer
  }

  async #ready(count: number): Promise<readonly Row[]> {
    const ahead = this.#ahead
    this.#ahead = undefined
    let scan = ahead?.age === this.#age ? ahead : this.#scan(count)
    let rows = await scan.rows
    // Nothing ahead, when it was asked for: there may be something now.
    if (scan === ahead && (rows.length === 0 || ahead.age !== this.#age)) {
      scan = this.#scan(count)
      rows = await scan.rows
    }
    const [lowest, highest] = [rows[0], rows.at(-1)].map((row) => row && numberOf(row))
    this.#floor.scanned(lowest ?? Number.POSITIVE_INFINITY, highest ?? -1, scan.inHand, scan.safe)
    if (rows.length > count) rows = rows.slice(0, count)
    this.#askWriters(rows.length)
    if (this.#next > 0 && rows.length === count && !rows.some(isBlocked)) {
      this.#ahead = this.#scan(this.#next, rows)
      // Whoever wants them is told. Often enough nobody does.
      this.#ahead.rows.catch(() => {})
    }
    return rows
  }

  #scan(count: number, taken: readonly Row[] = []): Scan {
    const numbers = new Ranges(this.#inHand)
    for (const row of taken) numbers.add(numberOf(row))
    const begin = this.#begin()
    const { from, to } = numbers.longest ?? { from: begin, to: begin }
    const values = [count, numbers, begin, from, Math.max(begin, to)].map(String)
    const rows = this.#read('ready', values).then(inOrder)
    return { rows, age: this.#age, inHand: numbers.lowest, safe: this.#floor.safe }
  }

  /** Where to begin: every now and then at the very left, whatever we believe. */
  #begin(): number {
    const now = this.#clock.monotonic()
    if (now < this.#allAt) return this.#floor.value
    this.#allAt = now + SCAN_ALL_EVERY
    return -1
  }

  #askWriters(rows: number): void {
    this.#sinceAsked += rows
    const now = this.#clock.monotonic()
    if (this.#sinceAsked < WRITERS_AFTER || now < this.#askAt) return
    this.#sinceAsked = 0
    this.#askAt = now + WRITERS_EVERY
    const asked = this.#reader.read('writers', this.#sql.writers, [])
    this.#asked = asked.then(
      (writers) => this.#floor.writers(writers.map(([writer]) => writer as string)),
      () => {},
    )
  }

  async #timers(count: number): Promise<readonly Row[]> {
    const rows = await this.#read('timers', [String(count), String(this.#inHand)])
    // More may be due already; otherwise somebody may schedule one for the next second.
    this.#timersAt = rows.length >= count ? 0 : this.#clock.monotonic() + 1000
    return rows
  }

  async #held(count: number): Promise<readonly Row[]> {
    const rows = await this.#read('held', [textArray([...this.#openKeys]), String(count), String(this.#inHand)])
    if (rows.length < count) {
      // What was in hand, or blocked, is told by its settlement, or found by the next look at the keys.
      this.#openKeys.clear()
    }
    return rows
  }

  /** Keys are opened by whoever settles, but a person may have removed what blocked one, or a relay died in between. */
  async #findOpenKeys(): Promise<void> {
    const rows = await this.#reader.read('open-keys', this.#sql.keys, [this.#keyCursor, String(OPEN_KEYS_AT_ONCE)])
    for (const [key, open] of rows) if (open === 't') this.#openKeys.add(key as string)
    const full = rows.length >= OPEN_KEYS_AT_ONCE
    this.#keyCursor = full ? (rows.at(-1)![0] as string) : ''
    this.#keysAt = this.#clock.monotonic() + (full ? 0 : LOOK_FOR_OPEN_KEYS_EVERY)
  }

  /** Within the byte limit, and at least one. What does not fit is found again: it is not in hand. */
  async #deliveries(rows: readonly Row[], bytes: number): Promise<OutboxDelivery[]> {
    const fitting = withinBytes(rows, bytes)
    let deliveries: OutboxDelivery[] = []
    try {
      deliveries = await deliveriesOf(this.#reader, this.#sql.large, fitting)
    } finally {
      // Also what was read ahead: it may hold later ones of the same keys.
      if (deliveries.length < rows.length) this.lookEverywhere()
    }
    for (const delivery of deliveries) {
      // Whoever let a lease run out may have died of it: that counts as an attempt.
      if (delivery.state === 'leased') delivery.attempts++
      this.#inHand.add(Number(delivery.sequence))
    }
    return deliveries
  }

  #read(place: 'ready' | 'timers' | 'held', values: readonly string[]): Promise<readonly Row[]> {
    return this.#reader.read(place, this.#sql[place], values)
  }
}

/**
 * Two ranges in one statement, so one snapshot: from $3, the floor, to $4, where the longest run in hand begins, and from
 * $5, where it ends. Only single ones in hand are walked over, and not the thousands that were read together.
 */
function steppingOver(scan: string): string {
  const part = (between: string) => `(${scan.replace('{{between}}', () => between)})`
  const before = part('event.sequence > $3::text::bigint AND event.sequence < $4::text::bigint')
  return `${before}\nUNION ALL\n${part('event.sequence > $5::text::bigint')}\nLIMIT $1::text::int`
}

/** They are, but SQL promises it of neither part when there are two. */
function inOrder(rows: readonly Row[]): readonly Row[] {
  return rows.toSorted((a, b) => numberOf(a) - numberOf(b))
}

/** A scan of ready rows, and what was known when it began. */
interface Scan {
  readonly rows: Promise<readonly Row[]>
  readonly age: number
  /** The lowest number in hand. */
  readonly inHand: number
  readonly safe: number
}

export interface Taken {
  readonly deliveries: readonly OutboxDelivery[]
  readonly blocked: readonly Row[]
}

const NOTHING: Taken = { deliveries: [], blocked: [] }
