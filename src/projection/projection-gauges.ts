import type { GaugeSource } from '../core/index.ts'
import { idText } from './definition.ts'
import type { ProjectionRun } from './run.ts'

/** What the owner of a projection can say of it. It knows all of it: nobody has to be asked. */
export function projectionGauges<Tx>(run: ProjectionRun<Tx>, store: object): GaugeSource {
  return {
    subject: 'projection',
    of: idText(run.projection),
    store,
    leads() {
      if (run.position !== undefined) return true
      // One that waits has found another owner. One that fails does not know.
      return run.status().state === 'failing' ? undefined : false
    },
    async read() {
      const { lag, parked = 0, heldSeconds } = run.status()
      return [
        { gauge: 'projection.lag', value: Number(lag?.numbers ?? 0) },
        { gauge: 'projection.lag_seconds', value: lag?.seconds ?? 0 },
        { gauge: 'projection.parked', value: parked },
        { gauge: 'projection.held', value: heldSeconds },
      ]
    },
  }
}
