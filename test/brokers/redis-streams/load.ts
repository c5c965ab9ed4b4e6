import { redisStreams, type StreamsSourceOptions } from '../../../src/brokers/redis-streams/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { eventually } from '../../support/redis-topologies.ts'
import { fresh, message, NEVER } from './support.ts'

export interface LoadOptions {
  readonly client: object
  /** So many replicas must have a message before it counts as accepted. */
  readonly replicas?: number
  readonly stream?: string
  readonly source?: Partial<StreamsSourceOptions>
}

/** A publisher and a flow that go on whatever happens, and what each of them was told. */
export async function underLoad({ client, replicas = 0, stream = fresh(), source = {} }: LoadOptions) {
  const broker = redisStreams({ client, timeout: 2000, durability: { replicas, within: 1000 } })
  const publisher = broker.publisher({ stream })
  const accepted = new Set<string>()
  const seen = new Map<string, number>()
  const errors = new Set<string>()
  const telemetry = recordTelemetry(['warning', 'message.dead'])
  const from = broker.source({ stream, group: 'g', block: 50, reclaim: { every: 200, idle: 2000 }, ...source })
  const flow = new Flow({
    name: stream,
    from,
    step: { each: ({ message: { id } }) => void seen.set(id, (seen.get(id) ?? 0) + 1) },
    outage: { min: 20, max: 200 },
  })
  await flow.start()
  let over = false
  const load = (async () => {
    while (!over) {
      const batch = Array.from({ length: 20 }, () => message())
      const outcomes = await publisher.publish(batch, NEVER).catch((error: unknown) => {
        // A throw means: the destination is down.
        errors.add(`down: ${error}`)
        return []
      })
      outcomes.forEach((outcome, i) => {
        if (outcome.kind === 'ok') accepted.add(batch[i]!.id)
        else errors.add(`${outcome.kind}: ${'error' in outcome ? String(outcome.error) : ''}`)
      })
      await systemClock.sleep(outcomes.some(({ kind }) => kind === 'ok') ? 2 : 50)
    }
  })()
  return {
    stream,
    accepted,
    seen,
    /** What publishing was answered other than ok. */
    errors,
    telemetry,
    source: from,
    /** Until so many more were accepted, and something more was handled. */
    async flows(more = 200): Promise<void> {
      const [before, handled] = [accepted.size, seen.size]
      const said = () => `${accepted.size - before} accepted, ${seen.size - handled} handled; ${[...errors]}`
      await eventually('messages flow', () => accepted.size >= before + more && seen.size > handled, { seen: said })
    },
    /** Ends the load, and answers what was accepted and has not come when nothing more is due. */
    async end(): Promise<string[]> {
      over = true
      await load
      const missing = () => [...accepted].filter((id) => !seen.has(id))
      await eventually('all of them came', async () => missing().length === 0).catch(() => {})
      telemetry.stop()
      await flow.stop()
      await publisher.close!()
      await broker.close()
      return missing()
    },
  }
}
