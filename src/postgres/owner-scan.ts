import type { Clock, Settlement } from '../core/index.ts'
import { type Connection, textArray } from '../drivers/sql.ts'
import type { Demand } from '../flow/index.ts'
import type { FillOptions, OutboxNames } from './names.ts'
import { deliveryOf, largePayloads, type OutboxDelivery, type Row, rowOf, withinBytes } from './row.ts'
import { sql } from './sql.generated.ts'

const LOOK_FOR_OPEN_KEYS_EVERY = 1000
const OPEN_KEYS_AT_ONCE = 200

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
 */
export class OwnerScan {
  readonly #reader: Connection
  readonly #clock: Clock
  readonly #sql: Record<'ready' | 'timers' | 'held' | 'keys' | 'look' | 'large', string>
  readonly #deadContinues: boolean
  readonly #inHand = new Map<string, OutboxDelivery>()
  readonly #openKeys = new Set<string>()
  #timersAt = 0
  #keysAt = 0
  #keyCursor = ''
  #nextTimer = Number.POSITIVE_INFINITY
  /** The last take found nothing anywhere. */
  #quiet = false

  constructor(reader: Connection, names: OutboxNames, fill: FillOptions, clock: Clock) {
    this.#reader = reader
    this.#clock = clock
    this.#deadContinues = fill.deadKey === 'continue'
    const text = (name: keyof typeof sql) => names.fill(sql[name], fill)
    this.#sql = {
      ready: text('scan-ready'),
      timers: text('scan-timers'),
      held: text('scan-held'),
      keys: text('open-keys'),
      look: text('look'),
      large: text('large-payloads'),
    }
  }

  /**
   * Up to `demand`, and what is blocked among what was read. `rung`: somebody has just said that there is something, so
   * look where new events are and hand them out before looking anywhere else.
   */
  async take({ count, bytes }: Demand, rung: boolean): Promise<Taken> {
    const found: Row[] = []
    const blocked: Row[] = []
    const add = (rows: readonly Row[]) => {
      for (const row of rows) if (!this.#inHand.has(row.sequence)) (row.blocked ? blocked : found).push(row)
    }
    if (rung) {
      this.lookEverywhere()
      add(await this.#ready(count))
    } else if (this.#quiet && !(await this.look())) {
      return NOTHING
    }
    if (found.length === 0) await this.#everywhere(count, found, add)
    this.#quiet = found.length === 0 && blocked.length === 0
    return { deliveries: await this.#deliveries(found, bytes), blocked }
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
    for (const { key } of rows) if (key !== undefined) this.#openKeys.add(key)
  }

  settled(delivery: OutboxDelivery, settlement: Settlement): void {
    this.#inHand.delete(delivery.sequence)
    const { key } = delivery
    if (settlement.kind === 'release') this.lookEverywhere()
    else if (settlement.kind === 'retry') {
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
  }

  /** Whether a take would find anything now. One cheap statement, for an idle relay. */
  async look(): Promise<boolean> {
    const [row] = await this.#reader.read('look', this.#sql.look, [this.#inHandRanges()])
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

  #ready(count: number): Promise<Row[]> {
    return this.#read('ready', [String(count), this.#inHandRanges()])
  }

  async #timers(count: number): Promise<Row[]> {
    const rows = await this.#read('timers', [String(count), this.#inHandRanges()])
    // More may be due already; otherwise somebody may schedule one for the next second.
    this.#timersAt = rows.length >= count ? 0 : this.#clock.monotonic() + 1000
    return rows
  }

  async #held(count: number): Promise<Row[]> {
    const rows = await this.#read('held', [textArray([...this.#openKeys]), String(count), this.#inHandRanges()])
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

  /** Within the byte limit, and at least one. What does not fit is found again: it was not remembered as in hand. */
  async #deliveries(rows: readonly Row[], bytes: number): Promise<OutboxDelivery[]> {
    const fitting = withinBytes(rows, bytes)
    if (fitting.length < rows.length) this.lookEverywhere()
    const large = await largePayloads(this.#reader, this.#sql.large, fitting)
    return fitting.map((row) => {
      const payload = large.get(row.eventId)
      const delivery = payload === undefined ? deliveryOf(row) : deliveryOf(row, payload.json, payload.hex)
      // Whoever let a lease run out may have died of it: that counts as an attempt.
      if (row.state === 'leased') delivery.attempts++
      this.#inHand.set(row.sequence, delivery)
      return delivery
    })
  }

  async #read(place: 'ready' | 'timers' | 'held', values: readonly string[]): Promise<Row[]> {
    return (await this.#reader.read(place, this.#sql[place], values)).map(rowOf)
  }

  /** As ranges, because what is in hand was mostly read in one go: a few, where a list would be thousands. */
  #inHandRanges(): string {
    const numbers = Float64Array.from(this.#inHand.keys(), Number).sort()
    let text = ''
    for (let from = 0, to = 0; from < numbers.length; from = to) {
      for (to = from + 1; numbers[to] === numbers[to - 1]! + 1; ) to++
      text += `${from === 0 ? '' : ','}[${numbers[from]},${numbers[to - 1]}]`
    }
    return `{${text}}`
  }
}

export interface Taken {
  readonly deliveries: readonly OutboxDelivery[]
  readonly blocked: readonly Row[]
}

const NOTHING: Taken = { deliveries: [], blocked: [] }
