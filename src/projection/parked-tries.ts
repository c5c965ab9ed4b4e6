import { telemetry } from '../core/index.ts'
import { applyParked } from './apply.ts'
import { idText } from './definition.ts'
import type { Owned, RunSettings } from './owned.ts'
import { type Enricher, prepare } from './prepare.ts'
import type { DueEvent } from './store.ts'

/** Parked events are looked at this often while there are any, in milliseconds. */
const LOOK_AT_PARKED = 1000
/** Whatever their lookups take, the log gets so many times as long. */
const LOG_SHARE = 9

/** Tries parked events again when their time has come. */
export class ParkedTries<Tx> {
  readonly #settings: RunSettings<Tx>
  readonly #enricher: Enricher
  #lookAt = 0

  constructor(settings: RunSettings<Tx>, enricher: Enricher) {
    this.#settings = settings
    this.#enricher = enricher
  }

  /** To be called when the right to the projection is new. */
  reset(): void {
    this.#lookAt = 0
  }

  /** Returns whether some were applied, so that more may be due. */
  async run(owned: Owned<Tx>, signal: AbortSignal): Promise<boolean> {
    const { db, clock, projection } = this.#settings
    const { parked } = owned.target
    if (parked.count === 0 || clock.monotonic() < this.#lookAt) return false
    const began = clock.monotonic()
    // As many as can be asked for at once: while they are, nothing else is applied.
    const due = await db.projections.due(projection, this.#settings.enrich.concurrency)
    // The table may have got the column that was missing.
    if (due.length > 0) owned.target.view = await db.projections.view(projection, true)
    const applied = await this.#try(owned, due, signal)
    const now = clock.monotonic()
    const pause = Math.max(LOOK_AT_PARKED, LOG_SHARE * (now - began))
    this.#lookAt = applied > 0 && pause === LOOK_AT_PARKED ? 0 : now + pause
    if (applied > 0 || due.length === 0) await this.#recount(owned)
    return applied > 0
  }

  /** Returns how many were applied. */
  async #try(owned: Owned<Tx>, due: readonly DueEvent[], signal: AbortSignal): Promise<number> {
    const { db, projection } = this.#settings
    const { projections: store } = db
    const events = await prepare(
      projection,
      due.map((event) => ({ ...event, unreadable: 'it was parked so' })),
    )
    // Anew: what was found when it was first tried may be old by now.
    await this.#enricher.enrich(events, signal, true)
    if (signal.aborted) return 0
    const prepared = new Map(events.map((event) => [event.position, event]))
    const hold = (tx: Tx) => store.hold(tx, projection, owned.term.epoch)
    let applied = 0
    for (const { position, type, attempts } of due) {
      const event = prepared.get(position)
      // A handler that is gone has nothing against it.
      const done = await (event === undefined
        ? db.withTransaction(async (tx) => (await hold(tx)) && store.unpark(tx, projection, position))
        : applyParked(owned.target, event, attempts, hold))
      if (!done) continue
      applied++
      const about = { projection: idText(projection), type, position: String(position), attempts }
      telemetry['projection.unparked'].publish(about)
    }
    return applied
  }

  /** Others remove parked events too: people skip them. */
  async #recount({ target: { parked } }: Owned<Tx>): Promise<void> {
    const { db, projection } = this.#settings
    const { keys, count } = await db.projections.parkedKeys(projection)
    parked.count = count
    parked.keys.clear()
    for (const key of keys) parked.keys.add(key)
  }
}
