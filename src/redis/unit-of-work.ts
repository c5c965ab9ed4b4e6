import { promised } from '../core/index.ts'
import { AmbientUnitOfWork } from '../store/unit-of-work.ts'
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
    super((fn) => {
      const unit = new Unit(settings.unit)
      const failed = (error: unknown, ending: Ending) =>
        ended(unit, ending, () => {
          throw error
        })
      return promised(() => fn(transactionOf(unit))).then(
        (value) => {
          unit.close()
          const committed = () => ended(unit, 'committed', () => value)
          const committing = commits.commit(unit)
          return committing === undefined
            ? committed()
            : committing.then(committed, (error) => failed(error, 'unknown'))
        },
        (error: unknown) => {
          unit.close()
          return failed(error, 'discarded')
        },
      )
    })
  }
}

/** Most units have nothing to wait for. */
function ended<T>(unit: Unit, ending: Ending, then: () => T): T | Promise<T> {
  const waits = unit.ended(ending)
  return waits === undefined ? then() : waits.then(then)
}
