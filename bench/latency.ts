/**
 * From the answer to COMMIT, in the process that wrote, to the publisher, in the process of the relay. The relay has its
 * defaults, so a wake-up that got lost shows as a delay near its poll interval of one second. `--quick` for a look.
 */
import { Contest, fill, say } from './support/pg-contest.ts'
import { atMost, type Bench, type Goal, type Row, round } from './support/report.ts'

interface Case {
  readonly name: string
  readonly perSecond: number
  readonly events: number
  readonly open?: boolean
}

const CASES: readonly Case[] = [
  { name: '100/s', perSecond: 100, events: 2000 },
  { name: '1000/s', perSecond: 1000, events: 2000 },
  { name: '1/s', perSecond: 1, events: 60 },
  { name: '100/s, a transaction left open', perSecond: 100, events: 2000, open: true },
]

export const bench: Bench = async ({ quick }) => {
  const contest = await Contest.open({ peers: false })
  try {
    const results: Row[] = []
    const delays = new Map<string, number[]>()
    await contest.databases.template('latency', (url) => fill(url, 0))
    for (const one of CASES) {
      const events = quick ? Math.ceil(one.events / 5) : one.events
      const found = await contest.databases.within('latency', (database) => measure(contest, database, one, events))
      delays.set(one.name, found)
      const at = (share: number) => round(found[Math.min(found.length - 1, Math.floor(share * found.length))]!)
      const row = {
        'events at': one.name,
        'p50 ms': at(0.5),
        'p99 ms': at(0.99),
        'max ms': at(1),
        events: found.length,
      }
      results.push(row)
      say(JSON.stringify(row))
    }
    return { results, goals: goalsOf(delays), versions: contest.versions }
  } finally {
    await contest.close()
  }
}

function goalsOf(delays: Map<string, number[]>): Goal[] {
  const usual = delays.get('100/s')!
  const worst = Math.max(...[...delays.values()].map((found) => found.at(-1)!))
  return [
    atMost('latency.p50_ms', 1.5, usual[Math.floor(usual.length / 2)]!),
    atMost('latency.p99_ms', 5, usual[Math.floor(usual.length * 0.99)]!),
    // Of all cases. The relay would look by itself after 1000 ms.
    atMost('latency.max_ms', 250, worst),
  ]
}

/** Sorted delays in milliseconds. Clocks of processes of one machine are the same clock. */
async function measure(contest: Contest, database: string, { perSecond, open = false }: Case, events: number) {
  const url = contest.server.url(database)
  const relay = contest.child(new URL('./support/pg-latency-relay.ts', import.meta.url), { url, events })
  const writer = contest.child(new URL('./support/pg-latency-writer.ts', import.meta.url), {
    url,
    events,
    perSecond,
    open,
  })
  await Promise.all([relay.next(), writer.next()])
  relay.send('go')
  await relay.next()
  writer.send('go')
  const committed = await writer.next<[string, number][]>()
  const dispatched = new Map(await relay.next<[string, number][]>())
  await Promise.all([relay.end(), writer.end()])
  return committed.map(([id, at]) => Math.max(0, dispatched.get(id)! - at)).sort((a, b) => a - b)
}
