import { cpus, totalmem } from 'node:os'

export type Cell = string | number

/** One line of a table. */
export type Row = Readonly<Record<string, Cell>>

export interface Goal {
  readonly name: string
  /** What is to be reached, as a person writes it: `≤ 1.5`. */
  readonly goal: string
  readonly value: number
  readonly met: boolean
}

/** What a benchmark returns. */
export interface Report {
  readonly results: readonly Row[]
  readonly goals: readonly Goal[]
  /** Peers that took part, and servers. */
  readonly versions?: Readonly<Record<string, string>>
}

/** What is after the name on the command line. Not every benchmark has a use for each. */
export interface BenchOptions {
  /** A look, in minutes. */
  readonly quick: boolean
  /** Whether it runs at all. */
  readonly tiny: boolean
  /** What takes long, too. */
  readonly full: boolean
  /** Whether this part was asked for; all of them, unless some are named. */
  readonly part: (name: string) => boolean
  readonly roles: readonly string[] | undefined
}

/** A benchmark is a file `bench/<name>.ts` that exports this as `bench`. */
export type Bench = (options: BenchOptions) => Promise<Report>

export function atMost(name: string, limit: number, value: number): Goal {
  return { name, goal: `≤ ${limit}`, value: round(value), met: value <= limit }
}

export function atLeast(name: string, limit: number, value: number): Goal {
  return { name, goal: `≥ ${limit}`, value: round(value), met: value >= limit }
}

/** Three digits that mean something; no benchmark here has more. */
export function round(value: number): number {
  return Number(value.toPrecision(3))
}

export function machine(): string {
  const all = cpus()
  return `${all.length} × ${all[0]?.model.trim() ?? 'unknown'}, ${Math.round(totalmem() / 2 ** 30)} GiB, ${process.platform}`
}

export function table(rows: readonly object[]): string {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))]
  const cells = rows.map((row) => columns.map((column) => text((row as Record<string, unknown>)[column])))
  const widths = columns.map((column, i) => Math.max(column.length, ...cells.map((line) => line[i]!.length)))
  const line = (values: readonly string[], pad = ' ') =>
    values.map((value, i) => value.padEnd(widths[i]!, pad)).join('  ')
  return [
    line(columns),
    line(
      columns.map(() => ''),
      '─',
    ),
    ...cells.map((values) => line(values)),
  ].join('\n')
}

function text(value: unknown): string {
  if (typeof value === 'boolean') return value ? 'yes' : 'NO'
  return value === undefined ? '' : String(value)
}
