/**
 * Whether the relay slows down when more waits: the same number of events leaves a table in which 10k, 1M or, with
 * `--full`, 10M are pending, or in which as many others stand at the head that cannot go out. And what it costs to drain
 * all of them in memory, and to wait for nothing.
 */
import { pairedRatio, summary } from './support/measure.ts'
import { Contest, type Contestant, fill, say, type Taken } from './support/pg-contest.ts'
import { cpuOf } from './support/pg-cpu.ts'
import { atHead, type Head, multiply } from './support/pg-head.ts'
import { ratioGoal } from './support/pg-rounds.ts'
import { atMost, type Bench, type Goal, type Row, round } from './support/report.ts'

const MEASURED = 10_000
/** As many before, from another table: ten thousand events take less time than the compiler. */
const WARM_UP = 50_000
const RELAY = { reader: 'owner', deleteOnPublish: true } as const

interface Size {
  readonly name: string
  readonly rows: number
  readonly head?: { kind: Head; count: number }
}

export const bench: Bench = async ({ full, quick }) => {
  const million = quick ? 100_000 : 1_000_000
  const others = full ? 1_000_000 : 100_000
  const heads = (['delayed', 'dead', 'blocked', 'published'] as const).map((kind): Size => {
    return { name: `${others} ${kind} first`, rows: others + MEASURED, head: { kind, count: others } }
  })
  const sizes: Size[] = [{ name: '10k', rows: MEASURED }, { name: '1m', rows: million }, ...heads]
  if (full) sizes.push({ name: '10m', rows: 10_000_000 })
  const pairs = quick ? 3 : 10
  const contest = await Contest.open({ peers: false })
  try {
    const results: Row[] = []
    const goals: Goal[] = []
    const taken: Record<string, Taken[]> = Object.fromEntries(sizes.map(({ name }) => [name, []]))
    for (const size of sizes) await prepare(contest, size)
    for (let i = 0; i < pairs; i++) {
      for (const size of sizes) {
        if (size.rows > 2_000_000 && i >= 3) continue
        const one = await partly(contest, size.name)
        taken[size.name]!.push(one)
        say(`${i + 1}/${pairs} ${size.name}: ${Math.round(one.perSecond)}/s, server ${round(one.serverUs)} µs`)
      }
    }
    const rates = (name: string) => taken[name]!.map(({ perSecond }) => perSecond)
    for (const { name, rows } of sizes) {
      const ratio = pairedRatio(rates(name), rates('10k').slice(0, rates(name).length))
      results.push({
        pending: name,
        rows,
        'events/s': Math.round(summary(rates(name)).median),
        'against 10k': round(ratio.median),
        'node µs': round(summary(taken[name]!.map(({ nodeUs }) => nodeUs)).median),
        'server µs': round(summary(taken[name]!.map(({ serverUs }) => serverUs)).median),
        rounds: taken[name]!.length,
        how: `${MEASURED} events of it, defaults, removes`,
      })
      if (name === '1m' || name === '10m') goals.push(ratioGoal(`growth.${name}/10k`, 0.9, ratio))
    }
    const all = full ? { name: '10m', events: 10_000_000 } : { name: '1m', events: million }
    const drained = await contest.databases.within(all.name, (database) => {
      return contest.drain({ name: 'drain', by: 'relay', relay: RELAY, events: all.events, how: '' }, database)
    })
    results.push({ pending: `${all.name}, drained`, 'events/s': Math.round(drained.perSecond), rows: all.events })
    goals.push(atMost('growth.resident_mb', 200, drained.residentMb))
    goals.push(...(await idle(contest, quick ? 15 : 60)))
    return { results, goals, versions: contest.versions }
  } finally {
    await contest.close()
  }
}

async function prepare({ server, databases }: Contest, { name, rows, head }: Size): Promise<void> {
  say(`${name}: writing ${rows} events`)
  await databases.template(name, async (url) => {
    await fill(url, WARM_UP, 'warmup')
    await fill(url, Math.min(rows, MEASURED))
    await multiply(server, name, rows)
    if (head !== undefined) await atHead(server, name, head.kind, head.count)
  })
}

/** Only the first events are measured: that is all that differs, and 10M would take minutes a round. */
function partly(contest: Contest, template: string): Promise<Taken> {
  const contestant: Contestant = {
    name: template,
    by: 'relay',
    relay: RELAY,
    warmUp: WARM_UP,
    events: MEASURED,
    how: '',
  }
  // Others are left behind on purpose: something goes on meanwhile, as far as the check is concerned.
  return contest.databases.within(template, (database) =>
    contest.drain(contestant, database, async () => async () => {}),
  )
}

async function idle(contest: Contest, seconds: number): Promise<Goal[]> {
  const { server, databases } = contest
  await databases.template('idle', (url) => fill(url, 0))
  return databases.within('idle', async (database) => {
    const child = contest.child(new URL('./support/pg-idle-child.ts', import.meta.url), {
      url: server.url(database),
      seconds,
    })
    const calls = async () => {
      const text = `SELECT COALESCE(sum(calls), 0)::int AS calls FROM pg_stat_statements
        JOIN pg_database ON pg_database.oid = dbid WHERE datname = $1`
      return (await server.sql('postgres', text, [database])).rows[0].calls as number
    }
    await server.sql('postgres', 'CREATE EXTENSION IF NOT EXISTS pg_stat_statements')
    await child.next()
    const before = { calls: await calls(), cpu: cpuOf(server.pid) ?? Number.NaN }
    const { cpu } = await child.next<{ cpu: number }>()
    const queries = (await calls()) - before.calls
    const serverCpu = (cpuOf(server.pid) ?? Number.NaN) - before.cpu
    await child.end()
    say(`idle for ${seconds} s: ${queries} queries, node ${round(cpu / 1000)} ms, server ${round(serverCpu / 1000)} ms`)
    return [
      atMost('growth.idle_queries_per_s', 1, queries / seconds),
      atMost('growth.idle_core_percent', 0.5, cpu / seconds / 10_000),
    ]
  })
}
