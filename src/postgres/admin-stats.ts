import type { Sql } from '../drivers/sql/sql.ts'
import type { Count, OutboxStats, State, StatsOptions } from '../outbox/admin.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** Up to here events are counted, through indexes that hold nothing else. Beyond, they are estimated. */
const COUNTED = 10_000
/** The same where an index holds several states. */
const LOOKED_AT = 5000
/** Without statistics the planner would rather read and sort all of a table than walk along an index. */
export const BY_INDEX = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']
/** An estimate looks at this many places, and at this many events at each. */
const PLACES = '200'
const EACH = '50'

/** All counts of a call together may cost as much as so many states that have come to their bound. */
const ALTOGETHER = 2

/**
 * How many events are in which state, without a scan that grows with the table. Small numbers are exact, and larger ones
 * up to `exactUpTo` of a state, as long as all of them are not more than twice that. Of the others, ready and dead are sampled through their indexes;
 * published is what is left of the rows the server has counted; the rest is what the last ANALYZE has seen.
 * Runs in a transaction, since it makes the planner use these indexes.
 */
export async function readStats(on: Sql, names: OutboxNames, options: StatsOptions = {}): Promise<OutboxStats> {
  const { exactUpTo = COUNTED, published = true } = options
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
  const timersFull = seen('timers') > LOOKED_AT
  const blockersFull = seen('blockers') > LOOKED_AT
  const full: Record<State, boolean> = {
    ready: counted.ready > COUNTED,
    scheduled: timersFull,
    retrying: timersFull,
    leased: timersFull,
    held: blockersFull,
    published: counted.published > COUNTED,
    dead: counted.dead > COUNTED,
  }
  const sizes = await sampleFull(on, names, full)
  const known =
    full.ready || full.dead || timersFull || blockersFull || full.published ? await total(on, names) : NOTHING
  // All indexes share a bound, small ones first: many must not cost many times as much as one.
  let left = ALTOGETHER * exactUpTo
  const about = (state: State) => sizes.get(state) ?? known.get(state) ?? 0
  const cost = ({ holds, row }: CountedIndex) => row * holds.reduce((sum, state) => sum + about(state), 0)
  for (const index of [...COUNTED_INDEXES].sort((a, b) => cost(a) - cost(b))) {
    if (!index.states.some((state) => full[state])) continue
    // What holds more is not worth beginning with.
    if (left <= COUNTED || cost(index) > 1.1 * left) continue
    if (index.states.some((state) => about(state) > 1.1 * exactUpTo)) continue
    const most = Math.min(Math.floor(left / index.row), index.holds.length * exactUpTo)
    left -= index.row * (await countExactly(on, names, index, most, counted, full))
  }
  const states = estimate(counted, full, sizes, known)
  return {
    states,
    oldestReadySeconds: row['oldest'] === null ? undefined : Math.max(0, Number(row['oldest'])),
    blockedKeys: blockedKeys(seen('keys'), seen('held'), states.held, blockersFull),
  }
}

const NOTHING: ReadonlyMap<string, number> = new Map()

/** A state index that can be counted: the states it holds, and those that are counted with it. */
interface CountedIndex {
  readonly holds: readonly State[]
  readonly states: readonly State[]
  readonly condition: string
  readonly order: string
  /** What a row costs: states that are told apart take half as long again. */
  readonly row: number
}

const COUNTED_INDEXES: readonly CountedIndex[] = [
  { holds: ['ready'], states: ['ready'], condition: `state = 'ready'`, order: 'sequence', row: 1 },
  { holds: ['dead'], states: ['dead'], condition: `state = 'dead'`, order: 'sequence', row: 1 },
  {
    holds: ['scheduled', 'retrying', 'leased'],
    states: ['scheduled', 'retrying', 'leased'],
    condition: `state IN ('scheduled', 'retrying', 'leased')`,
    order: 'available_at, sequence',
    row: 1.5,
  },
  {
    holds: ['retrying', 'dead', 'held'],
    states: ['held'],
    condition: `key IS NOT NULL AND state IN ('retrying', 'dead', 'held')`,
    order: 'key, sequence',
    row: 1.5,
  },
]

/** Counts one index up to the bound. Where it ends before, the numbers are exact. Returns how many it has seen. */
async function countExactly(
  on: Sql,
  names: OutboxNames,
  { holds, states, condition, order }: CountedIndex,
  most: number,
  counted: Record<State, number>,
  full: Record<State, boolean>,
): Promise<number> {
  const several = holds.length > 1
  // Where all that it holds is asked for, one of the states is what is left.
  const rest = states.length === holds.length ? states[0] : undefined
  const told = states.filter((state) => state !== rest)
  const counts = told.map((state) => `, count(*) FILTER (WHERE state = '${state}')::text AS ${state}`).join('')
  const text = sql['stats-count']
    .replaceAll('{{condition}}', condition)
    .replaceAll('{{order}}', order)
    .replaceAll('{{column}}', several ? 'state' : '1')
    .replaceAll('{{counts}}', counts)
  const row = (await on.query(names.fill(text), [String(most + 1)])).rows[0]!
  const seen = Number(row['seen'])
  const found = new Map(told.map((state) => [state, Number(row[state])]))
  if (rest !== undefined)
    found.set(
      rest,
      [...found.values()].reduce((left, count) => left - count, seen),
    )
  for (const [state, count] of found) {
    counted[state] = Math.max(counted[state], count)
    full[state] = seen > most
  }
  return seen
}

/** The states that are estimated from a sample. */
async function sampleFull(
  on: Sql,
  names: OutboxNames,
  full: Record<State, boolean>,
): Promise<ReadonlyMap<State, number>> {
  const sizes = new Map<State, number>()
  for (const state of ['ready', 'dead'] as const) if (full[state]) sizes.set(state, await sampled(on, names, state))
  return sizes
}

function estimate(
  counted: Record<State, number>,
  full: Record<State, boolean>,
  sizes: ReadonlyMap<State, number>,
  known: ReadonlyMap<string, number>,
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
    if (full[state]) guess(state, known.get(state) ?? 0)
  }
  if (full.published) {
    let others = 0
    for (const state in states) if (state !== 'published') others += states[state as State].count
    guess('published', (known.get('') ?? 0) - others)
  }
  return states
}

async function sampled(on: Sql, names: OutboxNames, state: 'ready' | 'dead'): Promise<number> {
  const text = sql['stats-sample'].replaceAll('{{condition}}', `state = '${state}'`)
  return Number((await on.query(names.fill(text), [PLACES, EACH])).rows[0]!['count'])
}

/** Rows by state, and all of them under the empty name. */
async function total(on: Sql, names: OutboxNames): Promise<Map<string, number>> {
  const { rows } = await on.query(names.fill(sql['stats-total']))
  return new Map(rows.map((row) => [(row['state'] as string | null) ?? '', Number(row['count'])]))
}

/** Where not all held events were seen, the others are taken to be as many for each key. */
function blockedKeys(keys: number, seen: number, held: Count, more: boolean): Count {
  if (!more || seen === 0) return { count: keys, estimated: more }
  return { count: Math.round((keys * held.count) / seen), estimated: true }
}
