import { TELEMETRY_NAMES, type TelemetryEvents, type TelemetryName, telemetry } from '../core/index.ts'
import { within } from './conformance.ts'

/** One telemetry event as it was published. */
export type Recorded = {
  [Name in TelemetryName]: { readonly name: Name; readonly event: TelemetryEvents[Name] }
}[TelemetryName]

/** The telemetry events that came since it was made. */
export interface TelemetryRecorder {
  /** In the order they were published. */
  readonly events: readonly Recorded[]
  of<Name extends TelemetryName>(name: Name): TelemetryEvents[Name][]
  /** Resolves with the first event of that name that fits, now or later; rejects after `limit` (real) milliseconds. */
  next<Name extends TelemetryName>(
    name: Name,
    fits?: (event: TelemetryEvents[Name]) => boolean,
    limit?: number,
  ): Promise<TelemetryEvents[Name]>
  clear(): void
  stop(): void
}

/** Records telemetry from now until `stop()`: all of it, or only these names. */
export function recordTelemetry(names: readonly TelemetryName[] = TELEMETRY_NAMES): TelemetryRecorder {
  const events: Recorded[] = []
  const waiting = new Set<() => void>()
  const record = <Name extends TelemetryName>(name: Name) =>
    telemetry[name].subscribe((event) => {
      events.push({ name, event } as unknown as Recorded)
      for (const look of waiting) look()
    })
  const stops = names.map((name) => record(name))
  const of = <Name extends TelemetryName>(name: Name) =>
    events.filter((recorded) => recorded.name === name).map(({ event }) => event as TelemetryEvents[Name])
  return {
    events,
    of,
    next(name, fits = () => true, limit = 5000) {
      let look = () => {}
      const found = new Promise<TelemetryEvents[typeof name]>((resolve) => {
        look = () => {
          const event = of(name).find(fits)
          if (event !== undefined) resolve(event)
        }
        waiting.add(look)
        look()
      })
      return within(limit, found, () => `no fitting ${name} among ${of(name).length}`).finally(() =>
        waiting.delete(look),
      )
    },
    clear() {
      events.length = 0
    },
    stop() {
      for (const stop of stops.splice(0)) stop()
    },
  }
}
