/**
 * How fast events leave the outbox, against peers and against a bare loop on the same table. `--quick` for a look,
 * `--only=a,b` for some of the parts: quiet, writers, snapshot.
 */
import { Contest, type Contestant } from './support/pg-contest.ts'
import { holdSnapshot, writers } from './support/pg-meanwhile.ts'
import { type Line, ratio, ratioGoal, rounds, rowOf } from './support/pg-rounds.ts'
import type { Bench, Goal, Row } from './support/report.ts'

const TUNED = { batch: 1000, maxBatch: 1000, concurrency: 2 }
/** Where many wait for a processor: larger batches need fewer turns. */
const CROWDED = { ...TUNED, batch: 2000, maxBatch: 2000 }

/** What they do before the clock begins, in a process that has just started: a second's work of the fastest. */
const COLD = { quick: 25_000, usual: 100_000 }

function contestants(events: number, cold: number): Record<string, Contestant> {
  const relay = (name: string, how: string, options: Contestant['relay']): Contestant => {
    return { name, by: 'relay', relay: options!, events, cold, how }
  }
  const all: Contestant[] = [
    relay('owner', 'tuned: batches of 1000, two at once; removes', {
      ...TUNED,
      reader: 'owner',
      deleteOnPublish: true,
    }),
    relay('owner defaults', 'defaults; removes', { deleteOnPublish: true }),
    relay('owner_update', 'tuned, three at once; keeps published events', {
      ...TUNED,
      concurrency: 3,
      reader: 'owner',
    }),
    relay('owner_update defaults', 'all defaults', {}),
    relay('lease', 'tuned; removes', { ...TUNED, reader: 'lease', deleteOnPublish: true }),
    {
      name: 'bare',
      by: 'bare',
      events,
      cold,
      how: 'pending scan of 1000 without what is in flight, fenced removal, nothing else',
    },
    { name: 'graphile', by: 'graphile-worker', events, cold, how: 'local queue 500, 24 at once, completed in batches' },
    { name: 'pg_boss', by: 'pg-boss', events, cold, how: 'batches of 1000, burst while full, two workers' },
  ]
  return Object.fromEntries(all.map((one) => [one.name, one]))
}

export const bench: Bench = async ({ quick, part }) => {
  const cold = quick ? COLD.quick : COLD.usual
  const contest = await Contest.open({ peers: true })
  const results: Row[] = []
  const goals: Goal[] = []
  const show = (situation: string, lines: Map<string, Line>) => {
    for (const line of lines.values()) results.push({ situation, ...rowOf(line) })
  }
  try {
    const all = contestants((quick ? 50_000 : 200_000) + cold, cold)
    if (part('quiet')) {
      const lines = await rounds(contest, Object.values(all), quick ? 3 : 5)
      // Within 30 % of 1: ten pairs.
      const close = await rounds(contest, [all['owner']!, all['bare']!], quick ? 3 : 10)
      const near = await rounds(contest, [all['lease']!, all['graphile']!], quick ? 2 : 5)
      show('quiet', lines)
      const few = quick ? 1000 : 3000
      const slow = { name: 'pg_transactional_outbox', by: 'pg-transactional-outbox', events: few } as const
      const how = `polling, 10 at once; ${few} events, since it slows down with more`
      const peer = await rounds(contest, [all['owner']!, { ...slow, how }], 3)
      show('quiet', new Map([...peer].slice(1)))
      for (const [name, line] of near) line.taken.push(...lines.get(name)!.taken)
      goals.push(
        ratioGoal('relay.owner/graphile', 3.5, ratio(lines, 'owner', 'graphile')),
        ratioGoal('relay.owner_update/graphile', 2.5, ratio(lines, 'owner_update', 'graphile')),
        ratioGoal('relay.owner/bare', 0.8, ratio(close, 'owner', 'bare')),
        ratioGoal('relay.owner/pg_transactional_outbox', 60, ratio(peer, 'owner', 'pg_transactional_outbox')),
        ratioGoal('relay.lease/graphile', 1.3, ratio(near, 'lease', 'graphile')),
      )
    }
    if (part('writers')) {
      const writing = { owner: writers(contest, 'waybill'), graphile: writers(contest, 'graphile') }
      const how = 'tuned: batches of 2000, two at once; removes'
      const owner = { ...all['owner']!, relay: { ...CROWDED, reader: 'owner', deleteOnPublish: true }, how } as const
      const lines = await rounds(contest, [owner, all['graphile']!], quick ? 2 : 5, writing)
      show('8 writers', lines)
      goals.push(ratioGoal('relay.owner_writers/graphile_writers', 3.5, ratio(lines, 'owner', 'graphile')))
    }
    if (part('snapshot')) {
      const many = contestants((quick ? 100_000 : 400_000) + cold, cold)
      const holding = {
        owner: holdSnapshot(contest),
        owner_update: holdSnapshot(contest),
        graphile: holdSnapshot(contest),
      }
      const chosen = [many['owner']!, many['owner_update']!, many['graphile']!]
      const lines = await rounds(contest, chosen, quick ? 1 : 3, holding)
      show('snapshot held', lines)
      const name = 'relay.owner_held_snapshot/graphile_held_snapshot'
      goals.push(ratioGoal(name, 1, ratio(lines, 'owner', 'graphile')))
    }
    return { results, goals, versions: contest.versions }
  } finally {
    await contest.close()
  }
}
