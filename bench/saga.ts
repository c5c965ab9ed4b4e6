/**
 * Sagas of three steps, driven by their caller: ours, DBOS, and the four writes alone. One at a time and 32 at once, on the
 * same server by turns, a process each, pools of 20. The same three steps as requests and replies beside them. Then what a saga
 * costs, counted; and claims in a full database.
 */
import { pairedRatio, summary } from './support/measure.ts'
import { Contest, say } from './support/pg-contest.ts'
import { cpuOf } from './support/pg-cpu.ts'
import { installDbos } from './support/pg-peers.ts'
import { ratioGoal } from './support/pg-rounds.ts'
import type { BenchServer } from './support/pg-server.ts'
import { atLeast, atMost, type Bench, type Goal, type Row, round } from './support/report.ts'
import { claims } from './support/saga-claims.ts'
import type { Ran } from './support/saga-rounds.ts'
import { create, fillFinished, fillRunning } from './support/saga-tables.ts'

const OURS = new URL('./support/saga-child.ts', import.meta.url)
const REQUESTS = new URL('./support/saga-requests-child.ts', import.meta.url)
const BARE = new URL('./support/saga-bare-child.ts', import.meta.url)
const DBOS = new URL('./peers/dbos/dbos.mjs', import.meta.url)

/** With the CPU microseconds of the server per saga. */
type Taken = Ran & { readonly server: number }

interface Contestant {
  readonly file: URL
  readonly database: string
  readonly options?: object
}

/** Rounds of all contestants by turns; each keeps its process. */
async function compete(
  contest: Contest,
  contestants: Readonly<Record<string, Contestant>>,
  { inFlight, ms, rounds, update = false }: { inFlight: number; ms: number; rounds: number; update?: boolean },
): Promise<Record<string, Taken[]>> {
  const names = Object.keys(contestants)
  const children = new Map(
    Object.entries(contestants).map(([name, { file, database, options = {} }]) => {
      const url = contest.server.url(database)
      return [name, contest.child(file, { url, inFlight, ms, update, ...options })] as const
    }),
  )
  const ran: Record<string, Taken[]> = Object.fromEntries(names.map((name) => [name, []]))
  try {
    for (const child of children.values()) await child.next()
    for (let i = 0; i < rounds; i++) {
      for (let j = 0; j < names.length; j++) {
        const name = names[(i + j) % names.length]!
        const child = children.get(name)!
        const before = cpuOf(contest.server.pid) ?? Number.NaN
        child.send('go')
        const own = await child.next<Ran>()
        const taken = { ...own, server: ((cpuOf(contest.server.pid) ?? Number.NaN) - before) / own.sagas }
        ran[name]!.push(taken)
        say(`${i + 1}/${rounds} ${name}, ${inFlight} in flight: ${Math.round(perSecond(taken))}/s`)
      }
    }
    return ran
  } finally {
    for (const child of children.values()) await child.end()
  }
}

const perSecond = ({ sagas, ms }: Ran) => (sagas / ms) * 1000

function rowsOf(what: string, ran: Record<string, Taken[]>): Row[] {
  return Object.entries(ran).map(([name, taken]) => {
    const rate = summary(taken.map(perSecond))
    const median = (of: (one: Taken) => number) => round(summary(taken.map(of)).median)
    return {
      what,
      contestant: name,
      'sagas/s': Math.round(rate.median),
      'half between': `${Math.round(rate.low)}–${Math.round(rate.high)}`,
      'p50 ms': median(({ p50 }) => p50),
      'p99 ms': median(({ p99 }) => p99),
      'node µs': median(({ cpu, sagas }) => cpu / sagas),
      'server µs': median(({ server }) => server),
    }
  })
}

const ratio = (ran: Record<string, Ran[]>, ours: string, theirs: string) =>
  pairedRatio(ran[ours]!.map(perSecond), ran[theirs]!.map(perSecond))

/** What `sagas` sagas cost the server, counted by the server. */
async function counted(contest: Contest, server: BenchServer, database: string, ms: number) {
  const child = contest.child(OURS, { url: server.url(database), inFlight: 1, ms, update: false })
  await child.next()
  const before = await counters(server, database)
  child.send('go')
  const { sagas } = await child.next<Ran>()
  // Statistics come a moment later.
  await new Promise((resolve) => setTimeout(resolve, 1500))
  const after = await counters(server, database)
  await child.end()
  const per = (name: keyof typeof after) => (after[name] - before[name]) / sagas
  return {
    statements: per('statements'),
    commits: per('commits'),
    wal: per('wal'),
    hot: (after.hot - before.hot) / (after.updates - before.updates),
  }
}

async function counters(server: BenchServer, database: string) {
  const { rows } = await server.sql(
    database,
    `SELECT (SELECT COALESCE(sum(calls), 0)::float8 FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
        WHERE d.datname = current_database() AND s.query ~ 'saga_(executions|steps)' AND s.query !~ 'pg_stat') AS statements,
      (SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()) AS commits,
      (pg_current_wal_lsn() - '0/0')::float8 AS wal,
      (SELECT n_tup_upd::float8 FROM pg_stat_user_tables WHERE relname = 'saga_executions') AS updates,
      (SELECT n_tup_hot_upd::float8 FROM pg_stat_user_tables WHERE relname = 'saga_executions') AS hot`,
  )
  return rows[0] as { statements: number; commits: number; wal: number; updates: number; hot: number }
}

export const bench: Bench = async ({ quick, tiny, part }) => {
  const ms = tiny ? 500 : quick ? 2000 : 8000
  const rounds = tiny ? 1 : quick ? 3 : 10
  const many = tiny ? 10_000 : quick ? 200_000 : 1_000_000
  const contest = await Contest.open({ peers: false })
  const results: Row[] = []
  const goals: Goal[] = []
  const { server, databases } = contest
  const dbos = part('rate') || part('update') ? { dbos: await installDbos(say) } : {}
  try {
    await databases.template('empty', create)
    const ours: Contestant = { file: OURS, database: 'empty' }
    const peers = { DBOS: { file: DBOS, database: 'dbos' } }
    await databases.template('dbos', create)
    if (part('rate')) {
      for (const inFlight of [1, 32]) {
        const all = { waybill: ours, ...peers, 'bare writes, prepared': { file: BARE, database: 'empty' } }
        const ran = await compete(contest, all, { inFlight, ms, rounds })
        results.push(...rowsOf(`${inFlight} in flight`, ran))
        goals.push(ratioGoal(`saga.sync_${inFlight}/dbos`, 4, ratio(ran, 'waybill', 'DBOS')))
        const bare = inFlight === 1 ? 'saga.sync_1/bare' : 'saga.sync/bare'
        goals.push(ratioGoal(bare, 0.8, ratio(ran, 'waybill', 'bare writes, prepared')))
      }
    }
    if (part('update')) {
      const all = { waybill: ours, 'waybill, in transactions': { ...ours, options: { transactions: true } }, ...peers }
      const ran = await compete(contest, all, { inFlight: 32, ms, rounds, update: true })
      results.push(...rowsOf('32 in flight, an UPDATE per step', ran))
      goals.push(ratioGoal('saga.update_per_step/dbos', 2.3, ratio(ran, 'waybill', 'DBOS')))
    }
    if (part('requests')) {
      const all = { 'waybill, three steps': ours, 'waybill, three requests': { ...ours, file: REQUESTS } }
      for (const inFlight of [1, 32]) {
        const ran = await compete(contest, all, { inFlight, ms, rounds })
        results.push(...rowsOf(`${inFlight} in flight, synchronous and asynchronous`, ran))
      }
    }
    if (part('counted')) {
      const { statements, commits, wal, hot } = await counted(contest, server, 'empty', ms)
      goals.push(atMost('saga.statements', 4.1, statements), atMost('saga.commits', 4.1, commits))
      goals.push(atMost('saga.wal_bytes', 3000, wal), atLeast('saga.hot', 0.6, hot))
    }
    if (part('finished')) {
      say(`${many} finished sagas`)
      await databases.template('finished', async (url) => {
        await create(url)
        await fillFinished(url, many)
      })
      const all = { empty: ours, full: { ...ours, database: 'finished' } }
      const ran = await compete(contest, all, { inFlight: 32, ms, rounds })
      results.push(...rowsOf(`32 in flight, ${many} finished`, { waybill: ran['full']! }))
      goals.push(ratioGoal('saga.finished_1m/empty', 0.9, ratio(ran, 'full', 'empty')))
    }
    if (part('claim')) {
      say(`${many} running and ${many} finished sagas`)
      await databases.template('claims', async (url) => {
        await create(url)
        await fillFinished(url, many)
        await fillRunning(url, many)
      })
      const times = tiny ? 4 : quick ? 40 : 200
      const alone = await databases.within('claims', (name) => claims(server.url(name), times))
      const held = await databases.within('claims', (name) => claims(server.url(name), times * 6, { snapshot: true }))
      for (const [what, { hundred, none, next }] of Object.entries({ alone, 'beside an old snapshot': held })) {
        results.push({
          what: `claims ${what}`,
          'of 100, ms': round(hundred),
          'none due, ms': round(none),
          'next due, ms': round(next),
        })
      }
      goals.push(atMost('saga.claim_1m_ms', 10, alone.hundred), atMost('saga.claim_none_ms', 1, alone.none))
      goals.push(atMost('saga.claim_snapshot/alone', 2, held.hundred / alone.hundred))
      goals.push(atMost('saga.claim_none_snapshot/alone', 2, held.none / alone.none))
    }
    return { results, goals, versions: { ...contest.versions, ...dbos } }
  } finally {
    await contest.close()
  }
}
