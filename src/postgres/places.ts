import { type Clock, warnOnce } from '../core/index.ts'
import { type Connection, textArray } from '../drivers/sql/sql.ts'
import type { Settlement } from '../flow/index.ts'
import { LowWater, START } from './low-water.ts'
import type { OutboxNames } from './names.ts'
import { isBlocked, keyOf, numberOf, type OutboxDelivery, type Row } from './row.ts'
import type { UnsettledRows } from './unsettled.ts'

const LOOK_FOR_OPEN_KEYS_EVERY = 1000
const OPEN_KEYS_AT_ONCE = 200
/** Between two steps through the open keys, while there are more of them. */
const NEXT_OPEN_KEYS = 20
const SCAN_ALL_EVERY = 1000
/** While others are at work, timers that somebody else may have set are looked for this often. */
const READ_TIMERS_EVERY = 50
/** Who writes is asked at most this often, and only after this many rows. */
const WRITERS_EVERY = 50
const WRITERS_AFTER = 1000

/** What the places share. */
export interface Reading {
  readonly table: string
  readonly names: OutboxNames
  readonly connection: Connection
  readonly clock: Clock
  readonly unsettled: UnsettledRows
  readonly sql: Record<'ready' | 'timers' | 'held' | 'keys' | 'look' | 'writers', string>
  /** The same, but for the keys in their last parameter. */
  readonly sqlWithout: Record<'ready' | 'timers', string>
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
export class Ready {
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

  async read(count: number, prefetch: number): Promise<readonly Row[]> {
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
    if (this.#readsAhead && prefetch > 0 && rows.length === count && !rows.some(isBlocked)) {
      this.#ahead = this.#scan(prefetch, rows)
      // Whoever awaits them gets the error. Often nobody does.
      this.#ahead.rows.catch(() => {})
    }
    return rows
  }

  /**
   * Ready rows of all but these keys. What is left out may lie anywhere between the rows that are read, so nothing is
   * concluded for the low-water mark, and nothing is read ahead.
   */
  async readWithout(keys: ReadonlySet<string>, count: number): Promise<readonly Row[]> {
    this.#ahead = undefined
    const rows = await this.#scan(count, [], keys).rows
    this.empty = rows.length === 0
    this.readUpTo = rows.length < count ? Number.POSITIVE_INFINITY : numberOf(rows.at(-1)!)
    return rows
  }

  /** Where to begin now: every now and then at the very left, whatever the mark says. */
  begin(now: number): number {
    return now < this.#allAt ? this.#lowWater.value : START
  }

  /** Milliseconds until a look begins at the very left again. */
  get untilAll(): number {
    return Math.max(0, this.#allAt - this.#reading.clock.monotonic())
  }

  /** A look from the very left that found something has not read it: the next scan begins there too. */
  looked(begin: number, found: boolean): void {
    if (begin === START && !found) this.#allAt = this.#reading.clock.monotonic() + SCAN_ALL_EVERY
  }

  async close(): Promise<void> {
    await this.#ahead?.rows.catch(() => {})
    await this.#asked
  }

  #scan(count: number, taken: readonly Row[] = [], without?: ReadonlySet<string>): Scan {
    const { clock, connection, sql, sqlWithout, unsettled } = this.#reading
    const now = clock.monotonic()
    const { text, lowest, longest } = unsettled.ranges(taken)
    const begin = this.begin(now)
    if (begin === START) this.#allAt = now + SCAN_ALL_EVERY
    const { from, to } = longest ?? { from: begin, to: begin }
    const values = [String(count), text, ...[begin, from, Math.max(begin, to)].map(String)]
    const asked =
      without === undefined
        ? connection.read('ready', sql.ready, values)
        : connection.read('ready', sqlWithout.ready, [...values, textArray([...without])])
    const rows = asked.then(inOrder)
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
export class Timers {
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

  async read(count: number, without?: ReadonlySet<string>): Promise<readonly Row[]> {
    const { connection, sql, sqlWithout, unsettled, clock } = this.#reading
    this.#next = Number.POSITIVE_INFINITY
    const values = [String(count), unsettled.ranges().text]
    const rows =
      without === undefined
        ? await connection.read('timers', sql.timers, values)
        : await connection.read('timers', sqlWithout.timers, [...values, textArray([...without])])
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
export class HeldKeys {
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
  async read(count: number, without?: ReadonlySet<string>): Promise<readonly Row[]> {
    const { clock, connection, sql, unsettled } = this.#reading
    if (clock.monotonic() >= this.#lookAt) await this.#findOpen()
    const keys = [...this.#open].filter((key) => !without?.has(key)).slice(0, count)
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
export function twoRanges(scan: string): string {
  const part = (between: string) => `(${scan.replace('{{between}}', () => between)})`
  const before = part('event.sequence > $3::text::bigint AND event.sequence < $4::text::bigint')
  return `${before}\nUNION ALL\n${part('event.sequence > $5::text::bigint')}\nLIMIT $1::text::int`
}

/** A scan of all keys, or of all but those that its last parameter lists. The list is read from its text once. */
export function allKeys(scan: string): string {
  return scan.replace('{{without}}', '')
}

export function someKeys(scan: string, parameter: number): string {
  const keys = `((SELECT $${parameter}::text::text[])::text[])`
  return scan.replace('{{without}}', () => ` AND (event.key IS NULL OR event.key <> ALL ${keys})`)
}

/** The places promise their own order, SQL promises none for two parts of a statement. */
export function inOrder(rows: readonly Row[]): readonly Row[] {
  return rows.toSorted((a, b) => numberOf(a) - numberOf(b))
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
