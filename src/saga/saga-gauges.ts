import type { GaugeSource, GaugeValue } from '../core/index.ts'
import type { CountedState, SagaStats, SagaStore } from './port.ts'
import type { SagaSession } from './source.ts'

const ALIVE = ['running', 'compensating', 'held'] as const
const NONE = { count: 0, estimated: false }
const NO_SAGAS = { running: NONE, compensating: NONE, held: NONE, failed: NONE }

/** Up to so many sagas of a state are counted one by one; beyond, their number is an estimate. */
const COUNTED_EXACTLY = 1_000_000

/** What a runner can say of the sagas of its store, also of those that others run. */
export function sagaGauges(
  store: SagaStore,
  types: ReadonlySet<string>,
  session: () => SagaSession | undefined,
): GaugeSource | undefined {
  if (store.stats === undefined) return undefined
  return {
    subject: 'saga',
    of: store.name,
    store: store.pool?.() ?? store,
    async leads() {
      const open = session()
      return open === undefined || open.lost.aborted ? undefined : open.tellsOfAll()
    },
    async read(ms) {
      const found = await store.stats!(COUNTED_EXACTLY, ms)
      // An absent number cannot be told from zero, nor be added to.
      const without = [...types].filter((type) => !found.some((one) => one.type === type))
      const empty = without.map((type) => ({ type, counts: NO_SAGAS, dueSeconds: 0, waitingSeconds: 0 }))
      return [...found, ...empty].flatMap(valuesOf)
    },
  }
}

function valuesOf({ type, counts, dueSeconds, waitingSeconds }: SagaStats): GaugeValue[] {
  const waits = counts.held.count + counts.failed.count
  return [
    ...ALIVE.map((state): GaugeValue => ({ gauge: 'saga.alive', value: counts[state].count, labels: { type, state } })),
    { gauge: 'saga.attention', value: waits, labels: { type } },
    { gauge: 'saga.oldest_due', value: dueSeconds, labels: { type } },
    { gauge: 'saga.oldest_attention', value: waitingSeconds, labels: { type } },
    ...Object.entries(counts).map(([state, { estimated }]): GaugeValue => {
      return { gauge: 'saga.estimated', value: estimated ? 1 : 0, labels: { type, state: state as CountedState } }
    }),
  ]
}
