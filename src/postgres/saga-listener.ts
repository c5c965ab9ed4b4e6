import { systemClock, telemetry, uuidv7, WaybillError } from '../core/index.ts'
import type { Database } from '../drivers/sql/sql.ts'
import type { SagaListener } from '../saga/port.ts'
import { PoolBudget } from './pool-budget.ts'
import type { SagaNames } from './saga-names.ts'
import { Speaker } from './saga-stats.ts'
import { IdleNotifier } from './wake.ts'

/** How often an idle listener shows the server that it lives, in milliseconds. */
const IDLE_EVERY = 5000

/**
 * Notifies a runner of new sagas. Two connections of the pool: one hears, one holds the idle flag. Behind a pooler nobody is
 * notified; and where the pool is so small that nothing would be left for steps, a runner that looks now and then is better
 * than none.
 */
export async function sagaListener(database: Database, names: SagaNames): Promise<SagaListener | undefined> {
  const table = names.table.text
  const budget = PoolBudget.of(database)
  const member = uuidv7()
  try {
    await budget.keep(member, { group: member, count: 2, what: `a runner of ${table} keeps 2, to be woken` })
  } catch (error) {
    if (!(error instanceof WaybillError) || error.code !== 'POOL_TOO_SMALL') throw error
    const message = `the runner is not notified of new sagas, and polls every few seconds: ${error.message}`
    telemetry.warning.publish({ where: `sagas ${table}`, message })
    return undefined
  }
  let listener: SagaListener | undefined
  try {
    listener = await listen(database, names, () => budget.leave(member))
    return listener
  } finally {
    if (listener === undefined) budget.leave(member)
  }
}

async function listen(database: Database, names: SagaNames, onClose: () => void): Promise<SagaListener | undefined> {
  const connect = () => database.connect({ prepare: false, applicationName: `waybill sagas ${names.table.text}` })
  const listener = await connect()
  if (listener.pooled) {
    await listener.release()
    return undefined
  }
  const options = { listener, names: names.flag, clock: systemClock, idleTimeout: 600_000, timeout: 5000 }
  const wake = new IdleNotifier({ ...options, connect: database.single ? undefined : connect })
  const speaker = new Speaker(listener, names)
  // While sagas are run here the wait is over again and again: the server need not hear of each.
  let idleAt = Number.NEGATIVE_INFINITY
  return {
    async wait(ms, signal) {
      if (wake.notified()) return true
      const now = systemClock.monotonic()
      if (now - idleAt > IDLE_EVERY || Number.isFinite(wake.retryIn)) {
        idleAt = now
        // When the flag has just gone up, look once more: earlier commits notified nobody.
        if ((await wake.goIdle()) && !Number.isFinite(wake.retryIn)) return true
      }
      await wake.sleep(Math.min(ms, wake.retryIn), signal)
      // Without the flag nobody notifies, so any end of the wait is a reason to look.
      return wake.notified() || Number.isFinite(wake.retryIn)
    },
    tellsOfAll: () => speaker.speaks(),
    busy() {
      idleAt = Number.NEGATIVE_INFINITY
      wake.goBusy()
    },
    close: async () => {
      onClose()
      await wake.close()
      await listener.release(true)
    },
  }
}
