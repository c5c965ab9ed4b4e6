import { pairedRatio, type Sample, type Summary, summary } from '../measure.ts'
import { type Row, round } from '../report.ts'

/** A line for people, and by how much ours is faster. */
export interface Measured {
  readonly row: Row
  readonly ratio: Summary
}

/** Rates, by turns, of ours and of what it is compared with. */
export function measured(
  what: string,
  count: number,
  { ours, theirs }: { readonly ours: readonly number[]; readonly theirs: readonly number[] },
  how: { readonly against: string; readonly ours: string; readonly theirs: string },
): Measured {
  const ratio = pairedRatio(ours, theirs)
  const row = {
    what,
    count,
    against: how.against,
    'theirs /s': Math.round(summary(theirs).median),
    'ours /s': Math.round(summary(ours).median),
    ratio: round(ratio.median),
    spread: `${round(ratio.low)}–${round(ratio.high)}`,
    rounds: ours.length,
    'how ours': how.ours,
    'how theirs': how.theirs,
  }
  return { row, ratio }
}

export function ratesOf(count: number, samples: Readonly<Record<'bare' | 'ours', readonly Sample[]>>) {
  const rate = (side: 'bare' | 'ours') => samples[side].map(({ wallMs }) => (count * 1000) / wallMs)
  return { ours: rate('ours'), theirs: rate('bare') }
}

/** Runs `work` for every number below `count`, `flying` of them at a time. */
export async function flying(count: number, inFlight: number, work: (i: number) => Promise<unknown>): Promise<void> {
  let next = 0
  const lane = async () => {
    while (next < count) await work(next++)
  }
  await Promise.all(Array.from({ length: inFlight }, lane))
}
