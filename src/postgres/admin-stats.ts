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

/**
 * How many events are in which state, without a scan that grows with the table. Small numbers are exact, and larger ones
 * as long as they are not more than `exactUpTo` together. Of the others, ready and dead are sampled through their indexes;
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
  // All indexes share the bound, small ones first: many must not cost many times as much as one.
  let left = exactUpTo
  const about = ({ holds }: CountedIndex) =>
    holds.reduce((sum, state) => sum + (sizes.get(state) ?? known.get(state) ?? 0), 0)
  for (const index of [...COUNTED_INDEXES].sort((a, b) => about(a) - about(b))) {
    if (!index.states.some((state) => full[state])) continue
    // What holds more is not worth beginning with.
    if (left <= COUNTED || about(index) > 1.1 * left) continue
    left -= await countExactly(on, names, index, left, counted, full)
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
}

const COUNTED_INDEXES: readonly CountedIndex[] = [
  { holds: ['ready'], states: ['ready'], condition: `state = 'ready'`, order: 'sequence' },
  { holds: ['dead'], states: ['dead'], condition: `state = 'dead'`, order: 'sequence' },
  {
    holds: ['scheduled', 'retrying', 'leased'],
    states: ['scheduled', 'retrying', 'leased'],
    condition: `state IN ('scheduled', 'retrying', 'leased')`,
    order: 'available_at, sequence',
  },
  {
    holds: ['retrying', 'dead', 'held'],
    states: ['held'],
    condition: `key IS NOT NULL AND state IN ('retrying', 'dead', 'held')`,
    order: 'key, sequence',
  },
]

/** Counts one index up to the bound. Where it ends before, the numbers are exact. Returns how many it has seen. */
async function countExactly(
  on: Sql,
  names: OutboxNames,
  { states, condition, order }: CountedIndex,
  most: number,
  counted: Record<State, number>,
  full: Record<State, boolean>,
): Promise<number> {
  const only = /^state = ('[a-z]+')$/.exec(condition)?.[1]
  const text = sql['stats-count']
    .replaceAll('{{condition}}', condition)
    .replaceAll('{{order}}', order)
    .replaceAll('{{state}}', only ?? 'state')
  const { rows } = await on.query(names.fill(text), [String(most + 1)])
  const found = new Map(rows.map((row) => [row['state'] as State, Number(row['count'])]))
  const seen = [...found.values()].reduce((sum, count) => sum + count, 0)
  for (const state of states) {
    counted[state] = Math.max(counted[state], found.get(state) ?? 0)
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
