/** Peers and ours, enqueueing in batches and processing, each at its best documented settings. */
import { Contest, type Contestant } from './support/pg-contest.ts'
import { rounds, rowOf } from './support/pg-rounds.ts'
import type { Bench } from './support/report.ts'

export const bench: Bench = async ({ quick }) => {
  const events = quick ? 50_000 : 200_000
  const few = quick ? 1000 : 3000
  const contestants: Contestant[] = [
    { name: 'waybill', by: 'relay', relay: { deleteOnPublish: true }, events, how: 'defaults; removes' },
    {
      name: 'graphile-worker',
      by: 'graphile-worker',
      events,
      how: 'local queue 500, 24 at once, completed in batches',
    },
    { name: 'pg-boss', by: 'pg-boss', events, how: 'batches of 1000, burst while full, two workers' },
    {
      name: 'pg-transactional-outbox',
      by: 'pg-transactional-outbox',
      events: few,
      how: `polling, 10 at once; ${few} events`,
    },
  ]
  const contest = await Contest.open({ peers: true })
  try {
    const lines = await rounds(contest, contestants, quick ? 2 : 5)
    return { results: [...lines.values()].map(rowOf), goals: [], versions: contest.versions }
  } finally {
    await contest.close()
  }
}
