import { memory } from '../../src/memory/index.ts'
import { type AnySaga, SagaAdmin, SagaRunner, type SagaRunnerOptions } from '../../src/saga/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'

/** Sagas in memory, with time that passes when told. */
export function inMemory() {
  const clock = new FakeClock()
  const db = memory({ clock })
  const runners: SagaRunner[] = []
  const telemetry = recordTelemetry()
  return {
    clock,
    db,
    telemetry,
    runner(sagas: readonly AnySaga[], options: Partial<SagaRunnerOptions<unknown>> = {}): SagaRunner {
      const runner = new SagaRunner({ store: db as never, sagas, clock, random: calm, ...options })
      runners.push(runner)
      return runner
    },
    admin: (...sagas: AnySaga[]) => new SagaAdmin({ store: db as never, sagas }),
    /** Lets time pass until `promise` has settled. */
    async soon<T>(promise: Promise<T>, limit = 4 * 3_600_000): Promise<T> {
      let settled = false
      const done = promise.finally(() => {
        settled = true
      })
      done.catch(() => {})
      await clock.until(() => settled, limit)
      return done
    },
    async load(id: string) {
      const found = await db.sagas.load(undefined, id)
      if (found === undefined) throw new Error(`there is no saga ${id}`)
      return found
    },
    async steps(id: string) {
      const found = await db.sagas.load(undefined, id)
      return Object.fromEntries((found?.steps ?? []).map(({ name, status }) => [name, status]))
    },
    async end() {
      telemetry.stop()
      const stopping = Promise.all(runners.map((runner) => runner.stop()))
      let over = false
      stopping.finally(() => {
        over = true
      })
      while (!over) await clock.advance(1000)
    },
  }
}

/** No jitter. */
export const calm = { next: () => 0, fill: (bytes: Uint8Array) => void crypto.getRandomValues(bytes) }

export function deferred<T = void>() {
  let resolve!: (value: T) => void
  let reject!: (error: unknown) => void
  const promise = new Promise<T>((yes, no) => {
    resolve = yes
    reject = no
  })
  promise.catch(() => {})
  return { promise, resolve, reject }
}
