import { WaybillError } from './errors.ts'
import { describe } from './options.ts'

/** Milliseconds, or a number with a unit: `'250ms'`, `'30s'`, `'10m'`, `'24h'`, `'7d'`. Several as Go has them: `'1m30s'`. */
export type Duration = number | `${number}${'ms' | 's' | 'm' | 'h' | 'd'}`

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/**
 * No message waits longer for its next try: 365 days, in milliseconds. A larger delay is cut to this one. Stores cannot
 * write every number: PostgreSQL's timestamps end, Redis counts in 64 bits.
 */
export const LONGEST_DELAY = 365 * 86_400_000

/** Milliseconds of `value`; `name` is the option it came from, for the error. */
export function milliseconds(value: Duration, name = 'duration'): number {
  const ms = typeof value === 'number' ? value : parse(value)
  if (!Number.isFinite(ms) || ms < 0) {
    throw new WaybillError(
      'INVALID_DURATION',
      `${name}: ${describe(value)} is not a duration; give milliseconds (0 or more) or a number with a unit, such as '250ms', '30s', '10m', '24h', '7d'`,
    )
  }
  return ms
}

function parse(value: unknown): number {
  if (typeof value !== 'string' || !/^(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+$/.test(value)) return Number.NaN
  let sum = 0
  for (const [, count, unit] of value.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g)) sum += Number(count) * UNITS[unit!]!
  return sum
}
