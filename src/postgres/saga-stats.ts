import type { Connection, Sql } from '../drivers/sql/sql.ts'
import type { CountedState, SagaStats } from '../saga/port.ts'
import { BY_INDEX } from './admin-stats.ts'
import type { SagaNames } from './saga-names.ts'
import { sql } from './sql.generated.ts'

/** Up to so many of one definition are counted, unless more are asked for. */
const COUNTED = 10_000
/** And so many of those whose rows are read, since their index does not know their type. */
const LOOKED_AT = 10_000

interface Part {
  readonly part: 'idle' | 'claimed' | 'undoing' | 'held' | 'failed'
  readonly type: string
  readonly seconds: number
  readonly full: boolean
  count: number
  /** Entries of its index at the last ANALYZE. */
  readonly whole: number
}

/**
 * How many sagas are in which state, through indexes that hold nothing but sagas that are alive or wait for a person. Runs in
 * a transaction, since it makes the planner use them.
 */
export async function sagaStats(on: Sql, names: SagaNames, exactUpTo = COUNTED): Promise<readonly SagaStats[]> {
  await on.query(`SELECT ${BY_INDEX.map((setting) => `set_config('${setting}', 'off', true)`).join(', ')}`)
  const { rows } = await on.query(names.fill(sql['saga-stats']), [String(exactUpTo + 1), String(LOOKED_AT + 1)])
  const parts = rows.map((row): Part => {
    const part = row['part'] as Part['part']
    const of = row['of'] as string
    const type = part === 'held' || part === 'failed' ? of : of.slice(0, of.lastIndexOf('@'))
    const whole = Number(row['whole'])
    return {
      part,
      type,
      seconds: Number(row['seconds']),
      full: row['full'] === true,
      count: Number(row['count']),
      whole,
    }
  })
  for (const part of ['idle', 'claimed', 'undoing'] as const) estimate(parts.filter((one) => one.part === part))
  estimate(parts.filter(({ part }) => part === 'held' || part === 'failed'))
  return [...new Set(parts.map(({ type }) => type))].map((type) =>
    statsOf(
      type,
      parts.filter((one) => one.type === type),
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

function statsOf(type: string, parts: readonly Part[]): SagaStats {
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
    held: sum('held'),
    failed: sum('failed'),
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
