import type { Connection, Sql } from '../drivers/sql/sql.ts'
import type { CountedState, SagaStats } from '../saga/port.ts'
import { BY_INDEX } from './admin-stats.ts'
import type { SagaNames } from './saga-names.ts'
import { sql } from './sql.generated.ts'
import type { TimedCounts } from './timed-counts.ts'

/** Up to so many of one definition are counted at every look. */
const COUNTED = 10_000
/** And so many of those whose rows are read, since their index does not know their type. */
const LOOKED_AT = 10_000
/** More rows than so many times the bound are not begun to be read. */
const MANY = 10

export interface Part {
  readonly part: 'idle' | 'claimed' | 'undoing' | 'held' | 'failed'
  /** A definition, or of those that wait for a person a type. */
  readonly of: string
  readonly type: string
  readonly seconds: number
  full: boolean
  count: number
  /** Entries of its index at the last ANALYZE. */
  readonly whole: number
}

/** The index of each part. */
const CONDITIONS = {
  idle: 'wake_at IS NOT NULL AND runner IS NULL',
  claimed: 'wake_at IS NOT NULL AND runner IS NOT NULL',
  undoing: `status = 'compensating' AND wake_at IS NOT NULL`,
} as const

const waits = ({ part }: Part) => part === 'held' || part === 'failed'

/** What a look has seen; counting goes on from there. */
export interface SagaLook {
  parts: readonly Part[]
}

/**
 * How many sagas are in which state, through indexes that hold nothing but sagas that are alive or wait for a person: small
 * numbers. Runs in a transaction, since it makes the planner use them.
 */
export async function lookAtSagas(on: Sql, names: SagaNames, exactUpTo = COUNTED): Promise<SagaLook> {
  await on.query(`SELECT ${BY_INDEX.map((setting) => `set_config('${setting}', 'off', true)`).join(', ')}`)
  const bounds = [Math.min(exactUpTo, COUNTED) + 1, LOOKED_AT + 1]
  const { rows } = await on.query(names.fill(sql['saga-stats']), bounds.map(String))
  return { parts: rows.map((row) => partOf(row, { full: row['full'] === true, whole: Number(row['whole']) })) }
}

/**
 * Counts what was not seen to its end, each state of a definition up to `exactUpTo` by itself. Writes each number into the look
 * when it is known: the server may end this in the middle.
 */
export async function countSagas(
  on: Sql,
  names: SagaNames,
  look: SagaLook,
  counts: TimedCounts<readonly Part[]>,
  { exactUpTo, until }: { readonly exactUpTo: number; readonly until: number | undefined },
): Promise<void> {
  if (exactUpTo <= COUNTED) return
  const parts = look.parts.filter((part) => part.full && !waits(part))
  const tasks: CountTask[] = parts.map((part) => ({
    what: `${part.part} ${part.of} ${exactUpTo}`,
    async count() {
      const text = sql['saga-count'].replaceAll('{{condition}}', CONDITIONS[part.part as keyof typeof CONDITIONS])
      const { rows } = await on.query(names.fill(text), [part.of, String(exactUpTo + 1)])
      const count = Number(rows[0]!['count'])
      return [{ ...part, count, full: count > exactUpTo }]
    },
    write([found]) {
      Object.assign(part, { count: found!.count, full: found!.full })
    },
  }))
  // Who waits behind those that were seen is of types that nobody knows, so they have no bound but time.
  const first = look.parts.find(waits)
  if (look.parts.some((part) => part.full && waits(part)) && first!.whole <= MANY * exactUpTo) {
    tasks.push({
      what: `waiting ${exactUpTo}`,
      async count() {
        const { rows } = await on.query(names.fill(sql['saga-count-waiting']))
        return rows.map((row) => partOf(row, { full: false, whole: first!.whole }))
      },
      write(found) {
        look.parts = [...look.parts.filter((part) => !waits(part)), ...found]
      },
    })
  }
  for (const { what, count, write } of counts.inOrder(tasks)) {
    const found = await counts.count(on, what, until, count)
    if (found !== undefined) write(found)
  }
}

/** One count, and what becomes of its answer. */
interface CountTask {
  readonly what: string
  count(): Promise<readonly Part[]>
  write(found: readonly Part[]): void
}

function partOf(row: Record<string, unknown>, more: Pick<Part, 'full' | 'whole'>): Part {
  const part = row['part'] as Part['part']
  const of = row['of'] as string
  const type = part === 'held' || part === 'failed' ? of : of.slice(0, of.lastIndexOf('@'))
  return { part, of, type, seconds: Number(row['seconds']), count: Number(row['count']), ...more }
}

/** What a look amounts to. */
export function sagaStatsOf({ parts }: SagaLook): readonly SagaStats[] {
  for (const part of ['idle', 'claimed', 'undoing'] as const) estimate(parts.filter((one) => one.part === part))
  const waiting = parts.filter(waits)
  estimate(waiting)
  // One that has none among those that were seen may have some among the others.
  const more = waiting.some(({ full }) => full)
  return [...new Set(parts.map(({ type }) => type))].map((type) =>
    statsOf(
      type,
      parts.filter((one) => one.type === type),
      more,
    ),
  )
}

/** What an index holds beyond what was counted is shared out among those that were not counted to their end. */
function estimate(parts: readonly Part[]): void {
  const full = parts.filter((part) => part.full)
  const counted = parts.reduce((sum, { count }) => sum + count, 0)
  const ofFull = full.reduce((sum, { count }) => sum + count, 0)
  const more = (parts[0]?.whole ?? 0) - counted
  // What was seen is there, whatever statistics say.
  if (more > 0) for (const part of full) part.count += Math.round((more * part.count) / ofFull)
}

function statsOf(type: string, parts: readonly Part[], more: boolean): SagaStats {
  const sum = (...of: Part['part'][]) => {
    const some = parts.filter(({ part }) => of.includes(part))
    return { count: some.reduce((total, { count }) => total + count, 0), estimated: some.some(({ full }) => full) }
  }
  const longest = (...of: Part['part'][]) =>
    Math.max(0, ...parts.filter(({ part }) => of.includes(part)).map(({ seconds }) => seconds))
  const active = sum('idle', 'claimed')
  const compensating = sum('undoing')
  const running = {
    count: Math.max(0, active.count - compensating.count),
    estimated: active.estimated || compensating.estimated,
  }
  const counts: Record<CountedState, { count: number; estimated: boolean }> = {
    running,
    compensating,
    held: { count: sum('held').count, estimated: more },
    failed: { count: sum('failed').count, estimated: more },
  }
  return { type, counts, dueSeconds: longest('idle', 'claimed'), waitingSeconds: longest('held', 'failed') }
}

/** Keeps clear of the idle flag of the same table, and of other people's advisory locks. */
const SPEAKER_CLASS = 1463897677

/**
 * Which of the runners of a table reports all of its sagas: whoever has an advisory lock, which ends with its connection.
 * Nothing else depends on it. In one session of PGlite everybody has it: they are one process.
 */
export class Speaker {
  readonly #listener: Connection
  readonly #sql: string
  #speaks = false
  #asking: Promise<boolean> | undefined

  constructor(listener: Connection, names: SagaNames) {
    this.#listener = listener
    const table = `('${names.table.sql}'::regclass::oid::bigint % 2147483647)::int`
    this.#sql = `SELECT pg_try_advisory_lock(${SPEAKER_CLASS}, ${table}) AS speaks`
  }

  async speaks(): Promise<boolean> {
    if (this.#speaks) return true
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = undefined
    })
    return this.#asking
  }

  async #ask(): Promise<boolean> {
    this.#speaks = (await this.#listener.query(this.#sql)).rows[0]!['speaks'] === true
    return this.#speaks
  }
}
