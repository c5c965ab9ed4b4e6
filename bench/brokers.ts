/**
 * Brokers: what relays publish into them and routers consume from them, against loops on the same client with the same
 * guarantees and nothing else. `--quick` for a look, `--only=nats,kafka` for some of the brokers, `--role=publish` or
 * `--role=consume` for one of the two.
 *
 * Publishing: an outbox in PostgreSQL, emptied into the broker. The bare loop reads the same table, publishes with all
 * that makes it safe (confirms, ids, acks of all replicas, signatures), as many at once, and removes what the broker has
 * confirmed; that is the least that can lose nothing. The loop from memory has no outbox at all: it shows what having
 * one costs, and no goal is set against it.
 */
import { BROKERS } from './support/brokers/all.ts'
import type { BrokerBench, Role } from './support/brokers/broker.ts'
import { BrokerContest, type Line, ratioOf, rowOf, type Side } from './support/brokers/contest.ts'
import { WARM_UP } from './support/measure.ts'
import { ratioGoal } from './support/pg-rounds.ts'
import type { Bench, Goal, Row } from './support/report.ts'

const TUNED = { reader: 'owner', batch: 1000, maxBatch: 1000, concurrency: 2, deleteOnPublish: true } as const

function publishing({ how }: BrokerBench): Side[] {
  const [ours, bare] = [how['ours publish'], how['bare publish']]
  return [
    {
      name: 'ours',
      goal: true,
      how: `owner, batches of 1000; ${ours}`,
      options: { side: 'ours', tuned: true, relay: TUNED },
    },
    {
      name: 'ours, defaults',
      how: 'defaults; removes',
      options: { side: 'ours', tuned: false, relay: { deleteOnPublish: true } },
    },
    {
      name: 'bare',
      goal: true,
      how: `the same outbox, fenced removal; ${bare}`,
      options: { side: 'bare', tuned: true },
    },
    { name: 'bare, from memory', how: `no outbox; ${bare}`, options: { side: 'memory', tuned: true } },
  ]
}

function consuming({ how }: BrokerBench): Side[] {
  return [
    { name: 'ours', goal: true, how: how['ours consume'], options: { side: 'ours', tuned: true } },
    { name: 'ours, defaults', how: 'defaults', options: { side: 'ours', tuned: false } },
    { name: 'bare', goal: true, how: how['bare consume'], options: { side: 'bare', tuned: true } },
  ]
}

export const bench: Bench = async ({ quick, tiny, part, roles = ['publish', 'consume'] }) => {
  const chosen = BROKERS.filter(({ name }) => part(name))
  // Within 30 % of 1: ten pairs of those with a goal. The others are there to be seen.
  const counts = tiny
    ? { rounds: 1, more: 0, warmUp: 1 }
    : { rounds: 2, more: quick ? 2 : 8, warmUp: quick ? 2 : WARM_UP }
  const results: Row[] = []
  const goals: Goal[] = []
  const contest = await BrokerContest.open()
  const versions: Record<string, string> = { ...contest.versions }
  try {
    for (const broker of chosen) {
      const { version } = await contest.withBroker(broker, async (url, server) => {
        for (const role of roles as Role[]) {
          const sides = role === 'publish' ? publishing(broker) : consuming(broker)
          const events = tiny ? 3000 : sizeOf(broker.name, role, quick)
          const lines = await contest.rounds(broker, role, sides, { url, server, events, ...counts })
          show(broker.name, role, lines)
        }
      })
      if (version !== '') versions[broker.name] = version
    }
    return { results, goals, versions }
  } finally {
    await contest.close()
  }

  function show(broker: string, role: Role, lines: readonly Line[]): void {
    results.push(...lines.map((line) => rowOf(broker, role, lines, line)))
    goals.push(ratioGoal(`brokers.${broker}.${role}/bare`, 0.8, ratioOf(lines, 'ours', 'bare')))
  }
}

/** So that a round takes a second or more with any of them. */
function sizeOf(broker: string, role: Role, quick: boolean): number {
  const sizes = role === 'publish' ? { rabbitmq: 50_000, http: 20_000 } : { rabbitmq: 100_000, http: 30_000 }
  const usual = role === 'publish' ? 100_000 : 200_000
  const many = sizes[broker as keyof typeof sizes] ?? usual
  return quick ? many / 4 : many
}
