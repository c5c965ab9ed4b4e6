import { type Clock, errorSummary, type GaugeSource, telemetry, WaybillError } from '../core/index.ts'
import { type Status, safeUntil, Task } from '../flow/index.ts'
import type { Holder, Leadership } from '../outbox/leadership.ts'
import { applyBatch } from './apply.ts'
import { Batches } from './batches.ts'
import { idText, type Projection } from './definition.ts'
import type { ProjectionLag } from './lag.ts'
import { AHEAD, checkEnd, checkSame, type Owned, openOwned, type RunSettings } from './owned.ts'
import { ParkedTries } from './parked-tries.ts'
import type { HeldBy, Position } from './port.ts'
import { Enricher } from './prepare.ts'
import { projectionGauges } from './projection-gauges.ts'
import { heldText } from './tail.ts'
import { inSpanOf } from './traced.ts'
import { waitersOf } from './waiters.ts'

/** How one projection is, here. Everything in it can be written as JSON, which knows no bigint. */
export type ProjectionStatus = Status & {
  readonly projection: string
  /** Up to where it has been applied, if this process runs it: the digits of the number. */
  readonly position: string | undefined
  readonly parked: number | undefined
  /** How far it is behind, if this process runs it. The end of the log is asked for every 5 s. */
  readonly lag: ProjectionLag | undefined
  readonly heldBy: HeldBy | undefined
  /** For how many seconds a transaction has held the log back; 0: none does. */
  readonly heldSeconds: number
}

/** What usually passes has failed so often at the same place: an event may be to blame. */
const STUBBORN = 3
/** How often the end of the log is asked for. */
const LOOK_AT_END = 5000
/** A transaction that has held the log back for so long is reported to those who wait. */
const LONG_HELD = 1000

/**
 * One projection in one process. Each round: have the right to it, try what is parked and due, read, apply. While another
 * has the right, it asks now and then.
 */
export class ProjectionRun<Tx = unknown> extends Task<boolean> {
  readonly projection: Projection
  override readonly gauges: GaugeSource
  readonly #settings: RunSettings<Tx>
  readonly #leadership: Leadership
  readonly #enricher: Enricher
  readonly #batches: Batches
  readonly #parked: ParkedTries<Tx>
  /** Called when the checkpoint moves, or something is parked. */
  readonly #watchers = new Set<() => void>()
  #owned: Owned<Tx> | undefined
  #failures = 0
  #endAt = 0

  constructor(settings: RunSettings<Tx>) {
    const { db, projection, poll, clock, random, tail } = settings
    super({
      name: idText(projection),
      every: poll,
      run: (signal) => this.#round(signal),
      again: (moved) => moved,
      backoff: { min: 50, max: 5000, jitter: 50 },
      clock,
      ...(random === undefined ? {} : { random }),
    })
    this.projection = projection
    this.gauges = projectionGauges(this, db)
    this.#settings = settings
    this.#leadership = db.leadership(`projection/${idText(projection)}`)
    this.#enricher = new Enricher(settings.enrich, clock)
    this.#batches = new Batches(projection, tail, this.#enricher)
    this.#parked = new ParkedTries(settings, this.#enricher)
    tail.follow(() => this.wake())
  }

  /** Up to where it has been applied, if this process has the right to it. */
  get position(): Position | undefined {
    return this.#owned !== undefined && this.#live(this.#owned) ? this.#owned.position : undefined
  }

  get log(): string {
    return this.#settings.tail.log.id
  }

  /** Of its log, if this process has the right to it. */
  get incarnation(): string | undefined {
    return this.#owned?.incarnation
  }

  get parkedCount(): number {
    return this.#owned?.target.parked.count ?? 0
  }

  /** Why it cannot go on, as far as this process knows. */
  get problem(): string | undefined {
    const { state, reason } = super.status()
    return state === 'failing' ? reason : undefined
  }

  /** Calls `changed` whenever the view has changed, until what it returns is called. */
  watch(changed: () => void): () => void {
    this.#watchers.add(changed)
    return () => {
      this.#watchers.delete(changed)
    }
  }

  override status(): ProjectionStatus {
    const owned = this.#owned
    const { tail, clock } = this.#settings
    const { heldBy } = tail
    return {
      ...super.status(),
      projection: idText(this.projection),
      position: owned?.position.toString(),
      parked: owned?.target.parked.count,
      lag: owned?.lag.at(owned.position),
      heldBy,
      heldSeconds: heldBy === undefined ? 0 : Math.max(0, (clock.now() - heldBy.since.getTime()) / 1000),
    }
  }

  /** Renews the right to it, if this process has it. */
  async renew(): Promise<void> {
    const owned = this.#owned
    if (owned === undefined) return
    const { member, lease, clock } = this.#settings
    const asked = clock.monotonic()
    if (await this.#leadership.renew(member, owned.term, lease)) owned.until = safeUntil(asked, lease)
    else this.#lose(owned)
  }

  async #round(signal: AbortSignal): Promise<boolean> {
    const owned = this.#owned ?? (await this.#own())
    if (owned === undefined) return false
    if (!this.#live(owned)) {
      // A process that was suspended wakes up past its lease: another may have it.
      this.#lose(owned)
      return true
    }
    try {
      const tried = await this.#parked.run(owned, signal)
      if (tried) this.#changed()
      const moved = await this.#applyNext(owned, signal)
      this.#failures = 0
      return moved || tried
    } catch (error) {
      if (signal.aborted) return false
      this.#failures++
      owned.lag.failed()
      if (error instanceof WaybillError && error.code === 'FENCED') {
        telemetry['projection.fenced'].publish({ projection: idText(this.projection) })
        this.#lose(owned)
        return true
      }
      await this.#report(owned, errorSummary(error), owned.built).catch(() => {})
      // Its position says nothing any more, to those who wait here either.
      if (error instanceof WaybillError && error.code === AHEAD) this.#lose(owned)
      throw error
    }
  }

  async #applyNext(owned: Owned<Tx>, signal: AbortSignal): Promise<boolean> {
    const batch = await this.#batches.after(owned.position)
    checkSame(this.projection, owned, batch.before)
    if (batch.upTo === batch.from) {
      await this.#caughtUp(owned, batch.heldBy)
      return false
    }
    if (batch.since !== undefined) owned.lag.behind(batch.since)
    await this.#lookAtEnd(owned)
    const obstacle = await this.#enricher.enrich(batch.events, signal)
    if (obstacle !== undefined) {
      // Whether others are answered tells an event that is to blame from an outage.
      this.#batches.readAhead(batch.upTo, signal)
      this.condition.hinder('enrich', 'paused', `enrich fails: ${errorSummary(obstacle)}`)
      throw obstacle
    }
    this.condition.clear('enrich')
    this.#batches.readAhead(batch.upTo, signal)
    const { clock } = this.#settings
    const began = clock.monotonic()
    const parked = owned.target.parked.count
    const { epoch } = owned.term
    const apply = () =>
      applyBatch(owned.target, epoch, batch.events, [batch.from, batch.upTo, batch.last], this.#failures >= STUBBORN)
    await inSpanOf(this.projection, batch.events, apply)
    owned.position = batch.upTo
    owned.event = batch.last
    owned.problem = undefined
    this.#batches.drop()
    this.condition.clear('held')
    telemetry['projection.applied'].publish({
      projection: idText(this.projection),
      count: batch.events.length,
      parked: owned.target.parked.count - parked,
      position: String(batch.upTo),
      took: clock.monotonic() - began,
    })
    this.#changed()
    return true
  }

  /** Nothing to read: it has been built, or somebody holds the log back. */
  async #caughtUp(owned: Owned<Tx>, heldBy: HeldBy | undefined): Promise<void> {
    const { clock } = this.#settings
    await this.#lookAtEnd(owned)
    if (heldBy !== undefined) {
      owned.lag.behind(heldBy.since)
      const text = heldText(heldBy)
      this.condition.hinder('held', 'waiting', text)
      if (clock.now() - heldBy.since.getTime() >= LONG_HELD) await this.#report(owned, text, owned.built)
      return
    }
    owned.lag.caughtUp()
    this.condition.clear('held')
    if (!owned.built || owned.problem !== undefined) await this.#report(owned, undefined, true)
  }

  async #lookAtEnd(owned: Owned<Tx>): Promise<void> {
    const { tail, clock } = this.#settings
    if (clock.monotonic() < this.#endAt) return
    this.#endAt = clock.monotonic() + LOOK_AT_END
    const { position } = await tail.log.head()
    owned.lag.endsAt(position)
    checkEnd(this.projection, owned.position, position)
  }

  async #report(owned: Owned<Tx>, problem: string | undefined, built: boolean): Promise<void> {
    if (owned.problem === problem && owned.built === built) return
    await this.#settings.db.projections.report(this.projection, owned.term.epoch, { problem, built })
    owned.problem = problem
    owned.built = built
    this.#changed()
  }

  #changed(): void {
    for (const changed of this.#watchers) changed()
    waitersOf(this.#settings.db.projections).report(this.projection)
  }

  async #own(): Promise<Owned<Tx> | undefined> {
    const { member, lease, poll, clock } = this.#settings
    const asked = clock.monotonic()
    const term = await this.#leadership.acquire(member, 0, lease)
    if (term === undefined) {
      const [other] = await this.#leadership.terms()
      this.condition.hinder('owner', 'waiting', otherText(other, clock), poll)
      return undefined
    }
    try {
      const owned = await openOwned(this.#settings, term, safeUntil(asked, lease))
      this.condition.clear('owner')
      this.#batches.dropAll()
      this.#parked.reset()
      this.#owned = owned
      return owned
    } catch (error) {
      const says = { problem: errorSummary(error), built: false }
      await this.#settings.db.projections.report(this.projection, term.epoch, says).catch(() => {})
      await this.#leadership.release(member, term).catch(() => {})
      throw error
    }
  }

  #live(owned: Owned<Tx>): boolean {
    return this.#settings.clock.monotonic() < owned.until
  }

  #lose(owned: Owned<Tx>): void {
    if (this.#owned === owned) this.#owned = undefined
    this.#batches.dropAll()
  }

  protected override async ended(): Promise<void> {
    const owned = this.#owned
    this.#owned = undefined
    await this.#batches.ended()
    if (owned !== undefined) await this.#leadership.release(this.#settings.member, owned.term)
  }
}

/** Who runs it, and until when. */
function otherText(other: Holder | undefined, clock: Clock): string {
  const text = 'another projector runs it'
  if (other === undefined) return text
  const until = new Date(clock.now() + other.expiresIn)
  return `${text}: ${other.holder}, until ${until.toISOString()} unless it is renewed`
}
