import { setImmediate } from 'node:timers/promises'

/** What one round cost. CPU time is of the whole process, garbage collection on other threads included. */
export interface Sample {
  readonly wallMs: number
  readonly cpuMs: number
}

export async function sample(work: () => unknown): Promise<Sample> {
  const cpu = process.cpuUsage()
  const began = performance.now()
  await work()
  const wallMs = performance.now() - began
  const { user, system } = process.cpuUsage(cpu)
  return { wallMs, cpuMs: (user + system) / 1000 }
}

/** Rounds that do not count: a process gets fast within its first ones, and a service has that behind it in minutes. */
export const WARM_UP = 3

/**
 * Rounds of every contestant by turns, so that what else the machine does meets all of them: the order within a round
 * rotates, and the first `warmUp` rounds do not count. What is done `before` is not measured.
 */
export async function interleave<Name extends string>(
  contestants: Readonly<Record<Name, () => unknown>>,
  options: { rounds: number; warmUp?: number; before?: (name: Name) => unknown },
): Promise<Record<Name, Sample[]>> {
  const names = Object.keys(contestants) as Name[]
  const samples = Object.fromEntries(names.map((name) => [name, [] as Sample[]])) as Record<Name, Sample[]>
  const warmUp = options.warmUp ?? WARM_UP
  for (let round = -warmUp; round < options.rounds; round++) {
    for (let i = 0; i < names.length; i++) {
      const name = names[(((round + i) % names.length) + names.length) % names.length]!
      await options.before?.(name)
      globalThis.gc?.()
      await setImmediate()
      const taken = await sample(contestants[name])
      if (round >= 0) samples[name].push(taken)
    }
  }
  return samples
}

export interface Summary {
  readonly median: number
  /** Half of the values lie between these. */
  readonly low: number
  readonly high: number
}

export function summary(values: readonly number[]): Summary {
  const sorted = [...values].sort((a, b) => a - b)
  const at = (share: number) => {
    const place = share * (sorted.length - 1)
    const below = sorted[Math.floor(place)]!
    return below + (sorted[Math.ceil(place)]! - below) * (place - Math.floor(place))
  }
  return { median: at(0.5), low: at(0.25), high: at(0.75) }
}

/** The median of paired ratios: round by round, so that a slow moment of the machine cancels out. */
export function pairedRatio(ours: readonly number[], theirs: readonly number[]): Summary {
  return summary(ours.map((value, i) => value / theirs[i]!))
}

/** The same with differences. */
export function pairedDifference(ours: readonly number[], theirs: readonly number[]): Summary {
  return summary(ours.map((value, i) => value - theirs[i]!))
}
