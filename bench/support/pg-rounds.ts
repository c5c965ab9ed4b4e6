import { pairedRatio, type Summary, summary } from './measure.ts'
import { type Contest, type Contestant, type Meanwhile, say, type Taken } from './pg-contest.ts'
import { type Goal, type Row, round } from './report.ts'

/** One line of the table of a contest: what it did in each round. */
export interface Line {
  readonly contestant: Contestant
  readonly taken: Taken[]
}

/** Rounds of every contestant by turns; the order rotates, so that what else the machine does meets all of them. */
export async function rounds(
  contest: Contest,
  contestants: readonly Contestant[],
  count: number,
  meanwhile?: Partial<Record<string, Meanwhile>>,
): Promise<Map<string, Line>> {
  const lines = new Map(contestants.map((contestant) => [contestant.name, { contestant, taken: [] as Taken[] }]))
  for (let i = 0; i < count; i++) {
    for (let j = 0; j < contestants.length; j++) {
      const contestant = contestants[(i + j) % contestants.length]!
      const taken = await contest.round(contestant, meanwhile?.[contestant.name])
      lines.get(contestant.name)!.taken.push(taken)
      say(`${i + 1}/${count} ${contestant.name}: ${Math.round(taken.perSecond)}/s, ${describe(taken)}`)
    }
  }
  return lines
}

const describe = ({ nodeUs, serverUs }: Taken) => `CPU µs per event: node ${round(nodeUs)}, server ${round(serverUs)}`

export function rowOf({ contestant, taken }: Line): Row {
  const rate = summary(taken.map(({ perSecond }) => perSecond))
  const median = (of: (taken: Taken) => number) => round(summary(taken.map(of)).median)
  return {
    contestant: contestant.name,
    'events/s': Math.round(rate.median),
    'half between': `${Math.round(rate.low)}–${Math.round(rate.high)}`,
    'node µs': median(({ nodeUs }) => nodeUs),
    'server µs': median(({ serverUs }) => serverUs),
    'resident MB': median(({ residentMb }) => residentMb),
    rounds: taken.length,
    how: contestant.how,
  }
}

export function ratio(lines: Map<string, Line>, ours: string, theirs: string): Summary {
  const rates = (name: string) => lines.get(name)!.taken.map(({ perSecond }) => perSecond)
  return pairedRatio(rates(ours), rates(theirs))
}

/** A goal for the median of paired ratios, with its spread. */
export function ratioGoal(name: string, limit: number, { median, low, high }: Summary): Goal & { spread: string } {
  const spread = `${round(low)}–${round(high)}`
  return { name, goal: `≥ ${limit}`, value: round(median), met: median >= limit, spread }
}
