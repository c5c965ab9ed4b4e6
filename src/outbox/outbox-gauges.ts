import { type GaugeSource, type GaugeValue, Unavailable } from '../core/index.ts'
import type { Status } from '../flow/index.ts'
import { type Count, type OutboxStats, STATES } from './admin.ts'
import type { OutboxReader, Reader } from './reader.ts'

/** The states of events that are neither published nor dead. */
const PENDING = STATES.filter((state) => state !== 'published' && state !== 'dead')

/** Up to so many events of a state are counted one by one; beyond, their number is an estimate. */
const COUNTED_EXACTLY = 1_000_000

/**
 * What a relay can say of the outbox it reads. `owns`: it has the part whose holder reports for all of it; `false`: it has only others;
 * `undefined`: none.
 */
export function outboxGauges(
  from: OutboxReader,
  relay: { status(): Status },
  reader: Reader,
  owns: () => boolean | undefined,
): GaugeSource | undefined {
  const { admin } = from
  if (admin === undefined) return undefined
  return {
    subject: 'table',
    of: from.name,
    store: from.pool?.() ?? from,
    leads() {
      const owned = owns()
      if (owned === true) return true
      const among = reader.leads?.()
      if (among !== undefined) return among
      // Its store answers, and the first part is another's.
      if (owned === false && !reader.competes) return false
      // One that waits knows for whom. Any other that does not own it cannot reach the store.
      // One that is switched off asks nothing.
      const { state, children = [] } = relay.status()
      const off = state === 'paused' && children.every((child) => child.state === 'stopped')
      return state === 'waiting' || off ? false : undefined
    },
    local() {
      const { state: own, unsettled = 0, children = [] } = relay.status()
      const paused = own === 'paused' || children.some(({ state }) => state === 'paused')
      const values: GaugeValue[] = [{ gauge: 'outbox.paused', value: paused ? 1 : 0 }]
      // Relays that compete write their leases into the rows, where they are counted.
      if (!reader.competes) values.push({ gauge: 'outbox.locked', value: unsettled })
      return values
    },
    async read(ms) {
      const stats = await admin.stats({ exactUpTo: COUNTED_EXACTLY, published: false, within: ms })
      // Half of it would look as if the rest had gone out.
      const away = stats.missing?.[0]
      if (away !== undefined) throw new Unavailable(`${away.part} cannot be asked: ${away.reason}`)
      const values = valuesOf(stats)
      if (reader.competes) values.push(...counted('outbox.locked', 'locked', [stats.states.leased]))
      return values
    },
  }
}

function valuesOf({ states, oldestReadySeconds = 0, blockedKeys }: OutboxStats): GaugeValue[] {
  return [
    { gauge: 'outbox.oldest', value: oldestReadySeconds },
    ...counted(
      'outbox.pending',
      'pending',
      PENDING.map((state) => states[state]),
    ),
    ...counted('outbox.dead', 'dead', [states.dead]),
    ...counted('outbox.scheduled', 'scheduled', [states.scheduled]),
    ...counted('outbox.blocked_keys', 'blocked_keys', [blockedKeys]),
  ]
}

/** The sum, and whether any of it is an estimate. */
function counted(gauge: GaugeValue['gauge'], state: string, counts: readonly Count[]): GaugeValue[] {
  const value = counts.reduce((sum, { count }) => sum + count, 0)
  const estimated = counts.some((count) => count.estimated)
  return [
    { gauge, value },
    { gauge: 'outbox.estimated', value: estimated ? 1 : 0, labels: { state } },
  ]
}
