import type { Sql } from '../drivers/sql/sql.ts'
import type { Count, OutboxStats, State } from '../outbox/admin.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** Up to here events are counted, through indexes that hold nothing else. Beyond, they are estimated. */
const COUNTED = 10_000
/** The same where the index does not tell one state from another, so that each row has to be looked at. */
const LOOKED_AT = 5000
/** Without statistics the planner would rather read and sort all of a table than walk along an index. */
const BY_INDEX = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']
/** An estimate looks at this many places, and at this many events at each. */
const PLACES = '200'
const EACH = '50'

/**
 * How many events are in which state, without a scan that grows with the table. Small numbers are exact. Of large ones,
 * ready and dead are sampled through their indexes; published is what is left of the rows the server has counted;
 * the others are what the last ANALYZE has seen.
 * Runs in a transaction: it tells the planner to use them.
 */
export async function readStats(on: Sql, names: OutboxNames): Promise<OutboxStats> {
  for (const setting of BY_INDEX) await on.query(`SET LOCAL ${setting} = off`)
  const row = (await on.query(names.fill(sql['stats']), [String(COUNTED + 1), String(LOOKED_AT + 1)])).rows[0]!
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
  const states = await estimate(on, names, counted, full)
  return {
    states,
    oldestReadySeconds: row['oldest'] === null ? undefined : Math.max(0, Number(row['oldest'])),
    blockedKeys: blockedKeys(seen('keys'), counted.held, states.held),
  }
}

async function estimate(
  on: Sql,
  names: OutboxNames,
  counted: Record<State, number>,
  full: Record<State, boolean>,
): Promise<Record<State, Count>> {
  const states = Object.fromEntries(
    Object.entries(counted).map(([state, count]) => [state, { count, estimated: full[state as State] }]),
  ) as Record<State, Count>
  const guess = (state: State, count: number) => {
    // What was seen is there, whatever statistics say.
    states[state] = { count: Math.max(counted[state], count), estimated: true }
  }
  for (const state of ['ready', 'dead'] as const) if (full[state]) guess(state, await sampled(on, names, state))
  if (!full.scheduled && !full.held && !full.published) return states
  const known = await total(on, names)
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
  const text = sql['stats-sample'].replaceAll('{{lane}}', `state = '${state}'`)
  return Number((await on.query(names.fill(text), [PLACES, EACH])).rows[0]!['count'])
}

/** Rows by state, and all of them under the empty name. */
async function total(on: Sql, names: OutboxNames): Promise<Map<string, number>> {
  const { rows } = await on.query(names.fill(sql['stats-total']))
  return new Map(rows.map((row) => [(row['state'] as string | null) ?? '', Number(row['count'])]))
}

/** Where not all held events were seen, the others are taken to be as many for each key. */
function blockedKeys(keys: number, seen: number, held: Count): Count {
  if (!held.estimated || seen === 0) return { count: keys, estimated: held.estimated }
  return { count: Math.round((keys * held.count) / seen), estimated: true }
}
