/**
 * What it costs to be seen. A relay with metrics and without, and with traces asked for while no SDK is registered, in CPU per
 * event; and a scrape of all gauges of an outbox with ten million rows. `--only=cost,gauges` for one of them.
 */
import { gaugeRows } from './support/gauges.ts'
import { pairedRatio, type Summary, summary } from './support/measure.ts'
import { Contest, type Contestant, type Taken } from './support/pg-contest.ts'
import { type Line, rounds } from './support/pg-rounds.ts'
import { atMost, type Bench, type Goal, type Row, round } from './support/report.ts'

/** Tuned as in `relay`, where an event costs least: what is added shows most. */
const RELAY = { batch: 1000, maxBatch: 1000, concurrency: 2, reader: 'owner', deleteOnPublish: true } as const

export const bench: Bench = async ({ quick, tiny, part }) => {
  const contest = await Contest.open({ peers: false })
  const results: Row[] = []
  const goals: Goal[] = []
  try {
    if (part('cost')) {
      const cold = tiny ? 1000 : quick ? 25_000 : 100_000
      const events = (tiny ? 1000 : quick ? 50_000 : 200_000) + cold
      const lines = await rounds(contest, contestants(events, cold), tiny ? 1 : quick ? 5 : 20)
      const off = lines.get('off')!
      for (const line of lines.values()) results.push(costOf(line, off))
      goals.push(costGoal('observability.metrics_on/off', lines.get('metrics')!, off))
      goals.push(costGoal('observability.tracing_idle/off', lines.get('tracing idle')!, off))
    }
    if (part('gauges')) {
      const rows = tiny ? 10_000 : quick ? 1_000_000 : 10_000_000
      const scrapes = await gaugeRows(contest, rows, tiny ? 3 : 20)
      for (const { what, median, slowest, estimated } of scrapes) {
        const ms = { ms: round(median), 'slowest ms': round(slowest), estimates: estimated }
        results.push({ contestant: `scrape, ${rows} rows`, how: what, ...ms })
      }
      const worst = Math.max(...scrapes.map(({ median }) => median))
      goals.push(atMost(`observability.gauges_${tiny ? '10k' : quick ? '1m' : '10m'}_ms`, 200, worst))
    }
    return { results, goals, versions: contest.versions }
  } finally {
    await contest.close()
  }
}

function contestants(events: number, cold: number): readonly Contestant[] {
  const relay = { by: 'relay', relay: RELAY, events, cold } as const
  return [
    { ...relay, name: 'off', metrics: false, how: 'nobody listens' },
    { ...relay, name: 'metrics', how: 'recordMetrics' },
    { ...relay, name: 'tracing idle', metrics: false, tracing: true, how: 'useOpenTelemetry, no SDK registered' },
  ]
}

const both = ({ nodeUs, serverUs }: Taken) => nodeUs + serverUs

function against({ taken }: Line, off: Line, of: (taken: Taken) => number): Summary {
  return pairedRatio(taken.map(of), off.taken.map(of))
}

function costOf(line: Line, off: Line): Row {
  const median = (of: (taken: Taken) => number) => round(summary(line.taken.map(of)).median)
  return {
    contestant: line.contestant.name,
    how: line.contestant.how,
    'node µs': median(({ nodeUs }) => nodeUs),
    'server µs': median(({ serverUs }) => serverUs),
    '× off, both': round(against(line, off, both).median),
    '× off, node': round(against(line, off, ({ nodeUs }) => nodeUs).median),
    rounds: line.taken.length,
  }
}

function costGoal(name: string, line: Line, off: Line): Goal & { spread: string } {
  const { median, low, high } = against(line, off, both)
  return { ...atMost(name, 1.03, median), spread: `${round(low)}–${round(high)}` }
}
