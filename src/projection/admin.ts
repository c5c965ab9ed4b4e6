import { checkOptions, systemClock } from '../core/index.ts'
import type { Audit } from '../outbox/admin.ts'
import { checkAudit } from '../outbox/admin-checks.ts'
import { checkId, checkStore, idText } from './definition.ts'
import type { ProjectionLag } from './lag.ts'
import type { Log, ParkedEvent, Position, ProjectionId } from './port.ts'
import type { ParkedFilter, ParkedPage, ProjectionAudit, ProjectionCheckpoint, ProjectionDatabase } from './store.ts'

/** The database of the views, and the log they follow. */
export interface ProjectionAdminOptions {
  store: Pick<ProjectionDatabase, 'projections' | 'leadership'>
  /** Without it there is no lag to report. */
  log?: Log
}

/** How a projection is, whoever runs it. */
export interface ProjectionReport extends ProjectionCheckpoint {
  /** Who runs it; `undefined`: nobody. */
  readonly owner: string | undefined
  /** Absent without a log, or where it follows another. */
  readonly lag: ProjectionLag | undefined
}

/** What people ask of projections, and do with them. Every action is written down with who did it and why. */
export class ProjectionAdmin {
  readonly #db: ProjectionAdminOptions['store']
  readonly #log: Log | undefined

  constructor(options: ProjectionAdminOptions) {
    checkOptions('projection admin', options, { store: true, log: true })
    checkStore('projection admin', options.store)
    this.#db = options.store
    this.#log = options.log
  }

  /** Every projection: how far it has come, how far behind, who runs it and what keeps it. */
  async status(): Promise<readonly ProjectionReport[]> {
    const reports: ProjectionReport[] = []
    for (const checkpoint of await this.#db.projections.list()) {
      const [owner] = await this.#db.leadership(`projection/${idText(checkpoint)}`).terms()
      reports.push({ ...checkpoint, owner: owner?.holder, lag: await this.#lag(checkpoint) })
    }
    return reports
  }

  async #lag({ log, incarnation, position }: ProjectionCheckpoint): Promise<ProjectionReport['lag']> {
    if (this.#log === undefined || this.#log.id !== log) return undefined
    const head = await this.#log.head()
    if (head.incarnation !== incarnation) return undefined
    const numbers = head.position > position ? Number(head.position - position) : 0
    if (numbers === 0) return { numbers, seconds: 0 }
    const { events, heldBy } = await this.#log.read(position, 1)
    const since = events[0]?.recordedAt ?? heldBy?.since
    return { numbers, seconds: since === undefined ? 0 : Math.max(0, (systemClock.now() - since.getTime()) / 1000) }
  }

  /** Events that could not be applied, and those behind them, by projection and position. */
  async parked(filter: ParkedFilter = {}, page: ParkedPage = {}): Promise<readonly ParkedEvent[]> {
    checkOptions('parked', filter, { projection: true, key: true, failed: true })
    checkOptions('parked', page, { limit: true, after: true })
    return this.#db.projections.parked(filter, page)
  }

  /** Gives up parked events: their changes will never be in the view. Returns those that were there. */
  async skip(projection: ProjectionId, positions: readonly Position[], audit: Audit): Promise<readonly Position[]> {
    checkId('skip', projection)
    checkAudit('skip', audit)
    return this.#db.projections.skip(projection, positions, audit)
  }

  /** Has parked events tried now. Returns those that were there. */
  async retry(projection: ProjectionId, positions: readonly Position[], audit: Audit): Promise<readonly Position[]> {
    checkId('retry', projection)
    checkAudit('retry', audit)
    return this.#db.projections.retry(projection, positions, audit)
  }

  /**
   * Ends a projection for good, with what is parked; its table stays until you drop it. Nobody can run this version again,
   * and the log may be trimmed past it. `false`: there was none.
   */
  async retire(projection: ProjectionId, audit: Audit): Promise<boolean> {
    checkId('retire', projection)
    checkAudit('retire', audit)
    return this.#db.projections.retire(projection, audit)
  }

  /** What people did to a projection, newest first. */
  async history(projection: ProjectionId): Promise<readonly ProjectionAudit[]> {
    return this.#db.projections.audits(projection)
  }
}
