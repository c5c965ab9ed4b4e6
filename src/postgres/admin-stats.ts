import type { Sql } from '../drivers/sql/sql.ts'
import type { Count, OutboxStats, State } from '../outbox/admin.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'
import type { TimedCounts } from './timed-counts.ts'

/** Up to here events are counted, through indexes that hold nothing else. Beyond, they are estimated. */
const COUNTED = 10_000
/** The same for events that wait: there are more kinds of them, and they change more often. */
const LOOKED_AT = 5000
/** Without statistics the planner would rather read and sort all of a table than walk along an index. */
export const BY_INDEX = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']
/** An estimate looks at this many places, and at this many events at each. */
const PLACES = '200'
const EACH = '50'

/** What is not begun: ANALYZE looks at some rows only, so even what it says of a state that has not changed is not exact. */
const SURELY = 1.5

/** What was seen of each state, and what is known beside. `full`: there are more than were seen. */
export interface StatsLook {
  readonly counted: Record<State, number>
  readonly full: Record<State, boolean>
  readonly sizes: ReadonlyMap<State, number>
  readonly known: ReadonlyMap<string, Known>
  blocked: { readonly keys: number; readonly held: number; readonly full: boolean }
  readonly oldestReadySeconds: number | undefined
}

/** What the server knows of a state without looking: about how many there are, how many at least, how many at most. */
interface Known {
  readonly count: number
  readonly least: number
  readonly most: number
}

/**
 * How many events are in which state, without a scan that grows with the table: small numbers, and what a sample and
 * statistics say of the others. Ready and dead are sampled through their indexes; published is what is left of the rows the
 * server has counted; the rest is what the last ANALYZE has seen.
 * Runs in a transaction, since it makes the planner use these indexes.
 */
export async function lookAt(on: Sql, names: OutboxNames, published: boolean): Promise<StatsLook> {
  await on.query(`SELECT ${BY_INDEX.map((setting) => `set_config('${setting}', 'off', true)`).join(', ')}`)
  const bounds = [COUNTED + 1, LOOKED_AT + 1, published ? COUNTED + 1 : 0]
  const row = (await on.query(names.fill(sql['stats']), bounds.map(String))).rows[0]!
  const seen = (name: string) => Number(row[name])
  const counted: Record<State, number> = {
    ready: seen('ready'),
    scheduled: seen('scheduled'),
    retrying: seen('retrying'),
    leased: seen('leased'),
    held: seen('held'),
    published: seen('published'),
    dead: seen('dead'),
  }
  const blockersFull = seen('blockers') > LOOKED_AT
  const full: Record<State, boolean> = {
    ready: counted.ready > COUNTED,
    scheduled: counted.scheduled > LOOKED_AT,
    retrying: counted.retrying > LOOKED_AT,
    leased: counted.leased > LOOKED_AT,
    held: blockersFull,
    published: counted.published > COUNTED,
    dead: counted.dead > COUNTED,
  }
  const known = Object.values(full).includes(true) ? await total(on, names) : NOTHING
  const sizes = await sampleFull(on, names, full, known)
  const blocked = { keys: seen('keys'), held: counted.held, full: blockersFull }
  const oldestReadySeconds = row['oldest'] === null ? undefined : Math.max(0, Number(row['oldest']))
  return { counted, full, sizes, known, blocked, oldestReadySeconds }
}

/**
 * Counts what was not seen to its end, each state up to `exactUpTo` by itself, small indexes first. What is surely above is
 * not begun. Writes each number into the look when it is known: the server may end this in the middle.
 */
export async function countExactly(
  on: Sql,
  names: OutboxNames,
  look: StatsLook,
  counts: TimedCounts<IndexCount>,
  { exactUpTo, until }: { readonly exactUpTo: number; readonly until: number | undefined },
): Promise<void> {
  if (exactUpTo <= COUNTED) return
  const about = (state: State) => look.sizes.get(state) ?? look.known.get(state)?.count ?? 0
  const least = (state: State) => look.known.get(state)?.least ?? 0
  const indexes = COUNTED_INDEXES.map((index) => ({ index, what: `${index.state} ${exactUpTo}` }))
  const size = ({ reads }: CountedIndex) => reads.reduce((sum, state) => sum + about(state), 0)
  indexes.sort((a, b) => size(a.index) - size(b.index))
  for (const { index, what } of counts.inOrder(indexes)) {
    const { state } = index
    if (!look.full[state] || least(state) > SURELY * exactUpTo) continue
    const found = await counts.count(on, what, until, () => countIndex(on, names, index, exactUpTo))
    if (found === undefined) continue
    const { count, more, keys } = found
    look.counted[state] = Math.max(look.counted[state], count)
    look.full[state] = more
    if (keys !== undefined) look.blocked = { keys, held: count, full: more }
  }
}

/** What a look amounts to. */
export function statsOf({ counted, full, sizes, known, blocked, oldestReadySeconds }: StatsLook): OutboxStats {
  const states = estimate(counted, full, sizes, known)
  return { states, oldestReadySeconds, blockedKeys: blockedKeys(blocked, states.held) }
}

const NOTHING: ReadonlyMap<string, Known> = new Map()

/** How a state is counted: along its index, and what that holds beside it. */
interface CountedIndex {
  readonly state: State
  /** All that is read, to find those of the state. */
  readonly reads: readonly State[]
  readonly condition: string
  readonly order: string
  /** In the order of their keys, so that these are told apart at little cost. */
  readonly byKey?: boolean
}

const alone = (state: State, order: string): CountedIndex => ({
  state,
  reads: [state],
  condition: `state = '${state}'`,
  order,
})

const COUNTED_INDEXES: readonly CountedIndex[] = [
  alone('ready', 'sequence'),
  alone('dead', 'sequence'),
  alone('scheduled', 'available_at, sequence'),
  alone('retrying', 'available_at, sequence'),
  alone('leased', 'available_at, sequence'),
  {
    state: 'held',
    reads: ['retrying', 'dead', 'held'],
    // The first part is that of the index, without which the planner does not see that it may be used alone.
    condition: `key IS NOT NULL AND state IN ('retrying', 'dead', 'held') AND state = 'held'`,
    order: 'key, sequence',
    byKey: true,
  },
]

/** How many of a state there are. `more`: they were not read to their end. */
export interface IndexCount {
  readonly count: number
  readonly more: boolean
  /** Of how many keys they are, where they are counted by key. */
  readonly keys?: number
}

async function countIndex(on: Sql, names: OutboxNames, index: CountedIndex, most: number): Promise<IndexCount> {
  const { condition, order, byKey = false } = index
  const text = sql[byKey ? 'stats-count-keys' : 'stats-count']
    .replaceAll('{{condition}}', condition)
    .replaceAll('{{order}}', order)
  const row = (await on.query(names.fill(text), [String(most + 1)])).rows[0]!
  const count = Number(row['seen'])
  return { count, more: count > most, ...(byKey && { keys: Number(row['keys']) }) }
}

/** The states that are estimated from a sample. A crowd at a place that was looked at seems to be one all the way to the next. */
async function sampleFull(
  on: Sql,
  names: OutboxNames,
  full: Record<State, boolean>,
  known: ReadonlyMap<string, Known>,
): Promise<ReadonlyMap<State, number>> {
  const sizes = new Map<State, number>()
  for (const state of ['ready', 'dead'] as const) {
    if (!full[state]) continue
    const { least, most } = known.get(state) ?? UNKNOWN
    sizes.set(state, Math.min(most, Math.max(least, await sampled(on, names, state))))
  }
  return sizes
}

function estimate(
  counted: Record<State, number>,
  full: Record<State, boolean>,
  sizes: ReadonlyMap<State, number>,
  known: ReadonlyMap<string, Known>,
): Record<State, Count> {
  const states = Object.fromEntries(
    Object.entries(counted).map(([state, count]) => [state, { count, estimated: full[state as State] }]),
  ) as Record<State, Count>
  const guess = (state: State, count: number) => {
    // What was seen is there, whatever statistics say.
    states[state] = { count: Math.max(counted[state], count), estimated: true }
  }
  for (const [state, size] of sizes) if (full[state]) guess(state, size)
  for (const state of ['scheduled', 'retrying', 'leased', 'held'] as const) {
    if (full[state]) guess(state, known.get(state)?.count ?? 0)
  }
  if (full.published) {
    let others = 0
    for (const state in states) if (state !== 'published') others += states[state as State].count
    guess('published', (known.get('')?.count ?? 0) - others)
  }
  return states
}

async function sampled(on: Sql, names: OutboxNames, state: 'ready' | 'dead'): Promise<number> {
  const text = sql['stats-sample'].replaceAll('{{condition}}', `state = '${state}'`)
  return Number((await on.query(names.fill(text), [PLACES, EACH])).rows[0]!['count'])
}

const UNKNOWN: Known = { count: 0, least: 0, most: Number.POSITIVE_INFINITY }

/** Rows by state, and all of them under the empty name. */
async function total(on: Sql, names: OutboxNames): Promise<Map<string, Known>> {
  const { rows } = await on.query(names.fill(sql['stats-total']))
  const known = new Map<string, Known>()
  for (const { state, ...row } of rows) {
    const name = (state as string | null) ?? ''
    const given = Object.entries(row).filter(([, number]) => number !== null)
    const numbers = Object.fromEntries(given.map(([what, number]) => [what, Number(number)]))
    known.set(name, { ...(known.get(name) ?? UNKNOWN), ...numbers })
  }
  return known
}

/** Where not all held events were seen, the others are taken to be as many for each key. */
function blockedKeys({ keys, held, full }: StatsLook['blocked'], all: Count): Count {
  if (!full) return { count: keys, estimated: false }
  // None of those that were seen: there is one at least where any is held.
  if (held === 0) return { count: Math.min(1, all.count), estimated: true }
  return { count: Math.round((keys * all.count) / held), estimated: true }
}
