import { AmbientUnitOfWork } from '../outbox/unit-of-work.ts'
import { type CommitSettings, Commits } from './commit.ts'
import { type Ending, type RedisTx, transactionOf, Unit, type UnitSettings } from './unit.ts'

export interface UnitOfWorkSettings extends CommitSettings {
  readonly unit: UnitSettings
}

/**
 * Units of work on Redis. Commands are queued, and run in one step when the function returns; when it throws they are
 * dropped. Nothing is sent before, and nothing is locked: what is read by other means may have changed by then.
 */
export class RedisUnitOfWork extends AmbientUnitOfWork<RedisTx> {
  constructor(settings: UnitOfWorkSettings) {
    const commits = new Commits(settings)
    super(async (fn) => {
      const unit = new Unit(settings.unit)
      let ending: Ending = 'discarded'
      try {
        const value = await fn(transactionOf(unit))
        unit.close()
        ending = 'unknown'
        const committing = commits.commit(unit)
        if (committing !== undefined) await committing
        ending = 'committed'
        return value
      } finally {
        unit.close()
        const waits = unit.ended(ending)
        if (waits !== undefined) await waits
      }
    })
  }
}
