/**
 * A log into one table: our projector, a bare loop of batched upserts, and Emmett's batch projection, each in a process of
 * its own on the same server by turns. Then how long a reader waits for its own write, how far the log's bound is behind
 * those who write, and what it costs that an outbox is a log.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { pairedRatio, summary } from './support/measure.ts'
import { Contest, say } from './support/pg-contest.ts'
import { cpuOf } from './support/pg-cpu.ts'
import type { Drained } from './support/pg-drain.ts'
import { installEmmett } from './support/pg-peers.ts'
import { ratioGoal } from './support/pg-rounds.ts'
import { boundLag } from './support/projection-bound.ts'
import { fillLog, VIEW } from './support/projection-view.ts'
import { atMost, type Bench, type Goal, type Row, round } from './support/report.ts'

const BATCH = 1000
const OURS = new URL('./support/projection-child.ts', import.meta.url)
const BARE = new URL('./support/projection-bare-child.ts', import.meta.url)
const EMMETT = new URL('./peers/emmett/emmett.mjs', import.meta.url)
const WAIT = new URL('./support/projection-wait-child.ts', import.meta.url)
const LOG = new URL('./support/projection-log-child.ts', import.meta.url)

interface Contestant {
  readonly file: URL
  readonly template: string
  readonly events: number
  readonly cold: number
}

interface Taken extends Drained {
  readonly perSecond: number
  readonly serverUs: number
}

async function take(contest: Contest, { file, template, events, cold }: Contestant): Promise<Taken> {
  const { server, databases } = contest
  return databases.within(template, async (database) => {
    const child = contest.child(file, { url: server.url(database), events, cold, batch: BATCH })
    await child.next()
    const before = cpuOf(server.pid) ?? Number.NaN
    child.send('go')
    const drained = await child.next<Drained>()
    await sleep(100)
    const serverUs = ((cpuOf(server.pid) ?? Number.NaN) - before) / events
    await child.end()
    const { rows } = await server.sql(database, 'SELECT count(*)::int AS count FROM customers')
    if (rows[0].count !== Math.min(2000, events)) throw new Error(`${file.pathname} has written ${rows[0].count} rows`)
    return { ...drained, perSecond: (drained.events / drained.ms) * 1000, serverUs }
  })
}

async function rates(contest: Contest, events: number, few: number, rounds: number) {
  await contest.databases.template('log', (url) => fillLog(url, events))
  await contest.databases.template('emmett', async (url) => {
    say(`emmett: writing ${few} events`)
    await contest.child(EMMETT, { url, events: few, mode: 'seed' }).end()
    await contest.server.sql('emmett', VIEW)
  })
  const cold = Math.ceil(events / 10)
  const contestants: Record<string, Contestant> = {
    waybill: { file: OURS, template: 'log', events, cold },
    'bare upsert': { file: BARE, template: 'log', events, cold },
    emmett: { file: EMMETT, template: 'emmett', events: few, cold: Math.ceil(few / 10) },
  }
  const names = Object.keys(contestants)
  const taken: Record<string, Taken[]> = Object.fromEntries(names.map((name) => [name, []]))
  for (let i = 0; i < rounds; i++) {
    for (let j = 0; j < names.length; j++) {
      const name = names[(i + j) % names.length]!
      const one = await take(contest, contestants[name]!)
      taken[name]!.push(one)
      say(`${i + 1}/${rounds} ${name}: ${Math.round(one.perSecond)} events/s`)
    }
  }
  return taken
}

const per = (taken: readonly Taken[]) => taken.map(({ perSecond }) => perSecond)
const at = (sorted: readonly number[], share: number) =>
  sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!

/** Sorted waits, of a reader in the projector's own process and of one elsewhere. */
async function waits(contest: Contest, events: number) {
  const perSecond = 100
  return contest.databases.within('waits', async (database) => {
    const url = contest.server.url(database)
    const here = contest.child(WAIT, { url, events, perSecond, runs: true })
    await here.next()
    here.send('go')
    const told = await here.next<number[]>()
    const elsewhere = contest.child(WAIT, { url, events, perSecond, runs: false })
    await elsewhere.next()
    elsewhere.send('go')
    const asked = await elsewhere.next<number[]>()
    await Promise.all([here.end(), elsewhere.end()])
    return { told, asked }
  })
}

/** Microseconds of the server's CPU per event, and of time, for enqueue and settle. */
async function logCost(contest: Contest, log: boolean, events: number) {
  const { server, databases } = contest
  return databases.within('empty', async (database) => {
    const child = contest.child(LOG, { url: server.url(database), events, log })
    await child.next()
    const part = async () => {
      const before = cpuOf(server.pid) ?? Number.NaN
      child.send('go')
      const { ms } = await child.next<{ ms: number }>()
      await sleep(100)
      return { serverUs: ((cpuOf(server.pid) ?? Number.NaN) - before) / events, us: (ms * 1000) / events }
    }
    const enqueue = await part()
    const settle = await part()
    await child.end()
    return { enqueue, settle }
  })
}

export const bench: Bench = async ({ quick, tiny, part }) => {
  const rounds = tiny ? 1 : quick ? 3 : 10
  const scaled = (events: number) => events / (tiny ? 20 : quick ? 4 : 1)
  const contest = await Contest.open({ peers: false })
  const emmett = part('rate') ? await installEmmett(say) : undefined
  const results: Row[] = []
  const goals: Goal[] = []
  try {
    if (part('rate')) {
      const taken = await rates(contest, scaled(200_000), scaled(40_000), rounds)
      for (const [contestant, of] of Object.entries(taken)) {
        const { median, low, high } = summary(per(of))
        results.push({
          what: `batches of ${BATCH}`,
          contestant,
          'events/s': Math.round(median),
          'half between': `${Math.round(low)}–${Math.round(high)}`,
          'node µs': round(summary(of.map(({ cpu, events }) => cpu / events)).median),
          'server µs': round(summary(of.map(({ serverUs }) => serverUs)).median),
        })
      }
      const ours = per(taken['waybill']!)
      goals.push(ratioGoal('projection.rate/bare_upsert', 0.8, pairedRatio(ours, per(taken['bare upsert']!))))
      goals.push(ratioGoal('projection.rate/emmett', 20, pairedRatio(ours, per(taken['emmett']!))))
    }
    if (part('wait')) {
      await contest.databases.template('waits', (url) => fillLog(url, 0))
      const { told, asked } = await waits(contest, scaled(2000))
      for (const [what, of] of Object.entries({ 'its own process': told, 'another process': asked })) {
        results.push({
          what: `waitFor, 100 writes/s, ${what}`,
          'p50 ms': round(at(of, 0.5)),
          'p99 ms': round(at(of, 0.99)),
        })
      }
      goals.push(atMost('projection.wait_p99_ms', 20, at(told, 0.99)))
    }
    if (part('bound')) {
      await contest.databases.template('bound', (url) => fillLog(url, 0))
      const { lags, looks } = await contest.databases.within('bound', (database) =>
        boundLag(contest.server.url(database), { events: scaled(8000), writers: 16 }),
      )
      results.push({
        what: 'log behind an oracle, 16 writers',
        'p50 ms': round(at(lags, 0.5)),
        'p99 ms': round(at(lags, 0.99)),
      })
      results.push({ what: 'an idle look', 'p50 ms': round(at(looks, 0.5)), 'p99 ms': round(at(looks, 0.99)) })
      goals.push(
        atMost('projection.bound_lag_ms', 5, at(lags, 0.5)),
        atMost('projection.idle_look_ms', 1, at(looks, 0.5)),
      )
    }
    if (part('log')) {
      await contest.databases.template('empty', async () => {})
      const costs: Record<'plain' | 'log', Awaited<ReturnType<typeof logCost>>[]> = { plain: [], log: [] }
      for (let i = 0; i < Math.min(rounds, 5); i++) {
        for (const kind of i % 2 === 0 ? (['plain', 'log'] as const) : (['log', 'plain'] as const)) {
          costs[kind].push(await logCost(contest, kind === 'log', scaled(20_000)))
        }
      }
      for (const step of ['enqueue', 'settle'] as const) {
        for (const kind of ['plain', 'log'] as const) {
          results.push({
            what: `${step}, one event`,
            contestant: kind === 'log' ? 'log: true' : 'no log',
            'server µs': round(summary(costs[kind].map((cost) => cost[step].serverUs)).median),
            'took µs': round(summary(costs[kind].map((cost) => cost[step].us)).median),
          })
        }
      }
    }
    return { results, goals, versions: { ...contest.versions, ...(emmett === undefined ? {} : { emmett }) } }
  } finally {
    await contest.close()
  }
}
