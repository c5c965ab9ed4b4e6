import { readdirSync, readFileSync } from 'node:fs'

/** Of a clock tick on Linux, in microseconds: the kernel tells processes 100 Hz whatever it uses itself. */
const TICK = 10_000

/**
 * CPU microseconds that a process and its children have used, those that ended included; for PostgreSQL all of the
 * server. Undefined where there is no /proc.
 */
export function cpuOf(pid: number | null): number | undefined {
  const main = pid === null ? undefined : statOf(pid)
  if (main === undefined) return undefined
  let ticks = main.own + main.ended
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const stat = statOf(Number(name))
    if (stat?.parent === pid) ticks += stat.own
  }
  return ticks * TICK
}

function statOf(pid: number): { parent: number; own: number; ended: number } | undefined {
  let text: string
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'utf8')
  } catch {
    return undefined
  }
  // The second field is a name in brackets, which may hold anything.
  const fields = text
    .slice(text.lastIndexOf(')') + 2)
    .split(' ')
    .map(Number)
  return { parent: fields[1]!, own: fields[11]! + fields[12]!, ended: fields[13]! + fields[14]! }
}
