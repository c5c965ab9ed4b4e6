import type pg from 'pg'
import type { Journal, Line } from './journal.ts'

/** What the database and the destination know, each on its own. */
export interface Facts {
  /** What the writers committed, in a table of their own. */
  readonly ledger: readonly { readonly id: string; readonly key: string | null; readonly n: number }[]
  readonly rows: readonly {
    readonly id: string
    readonly state: string
    readonly attempts: number
    /** Milliseconds since 1970. */
    readonly published: number | null
  }[]
  readonly lines: readonly Line[]
}

export interface Expected {
  /** Keys are in order and one at a time. Not so where relays compete. */
  readonly ordered?: boolean
  /** Published rows are removed. */
  readonly deletes?: boolean
  /** These events end dead, and only these. */
  readonly dead?: readonly string[]
  /** How many events may have arrived more than once. Default none. */
  readonly duplicates?: number
  /** Relays that were suspended or cut off: what they had out may go out again elsewhere meanwhile. */
  readonly zombies?: readonly string[]
  /** Attempts may have been spent. Default: only on what is dead. */
  readonly charged?: boolean
}

/** By SQL of its own: none of the product's statements, views or functions. */
export async function gather(pool: pg.Pool, journal: Journal): Promise<Facts> {
  const ledger = await pool.query('SELECT event_id AS id, key, n FROM ledger')
  const rows = await pool.query(
    `SELECT event_id AS id, state, attempts, extract(epoch FROM published_at)::float8 * 1000 AS published FROM outbox`,
  )
  return { ledger: ledger.rows, rows: rows.rows, lines: journal.read() }
}

/** Everything that is wrong, one sentence each, beginning with its kind. */
export function problems(facts: Facts, expected: Expected = {}): string[] {
  return [
    ...lost(facts, expected),
    ...invented(facts),
    ...ackedEarly(facts),
    ...unsettled(facts, expected),
    ...inFlightTwice(facts, expected),
    ...(expected.ordered === false ? [] : outOfOrder(facts, expected)),
    ...repeated(facts, expected),
    ...chargedWrongly(facts, expected),
  ]
}

function arrivals({ lines }: Facts): Map<string, Line> {
  const first = new Map<string, Line>()
  for (const line of lines) if (line.what === 'ok' && !first.has(line.id!)) first.set(line.id!, line)
  return first
}

function lost(facts: Facts, { dead = [] }: Expected): string[] {
  const arrived = arrivals(facts)
  const missing = facts.ledger.filter(({ id }) => !arrived.has(id) && !dead.includes(id))
  return missing.map(({ id, key, n }) => `lost: ${id} (${key} ${n}) was committed and never arrived`)
}

function invented({ ledger, lines }: Facts): string[] {
  const known = new Set(ledger.map(({ id }) => id))
  const strange = new Set(lines.flatMap(({ what, id }) => (what === 'start' && !known.has(id!) ? [id] : [])))
  return [...strange].map((id) => `invented: ${id} went out and was never committed`)
}

function ackedEarly(facts: Facts): string[] {
  const arrived = arrivals(facts)
  return facts.rows.flatMap(({ id, state, published }) => {
    if (state !== 'published') return []
    const arrival = arrived.get(id)
    if (arrival === undefined) return [`acked early: ${id} is published and never arrived`]
    const early = arrival.at - published!
    return early > 5 ? [`acked early: ${id} was published ${early.toFixed(1)} ms before it arrived`] : []
  })
}

function unsettled({ ledger, rows }: Facts, { deletes, dead = [] }: Expected): string[] {
  const states = new Map(rows.map(({ id, state }) => [id, state]))
  return ledger.flatMap(({ id, key, n }) => {
    const state = states.get(id) ?? 'gone'
    const wanted = dead.includes(id) ? 'dead' : deletes ? 'gone' : 'published'
    return state === wanted ? [] : [`unsettled: ${id} (${key} ${n}) is ${state}, not ${wanted}`]
  })
}

/** What a relay had out when it died is no longer out; what a zombie has out is nobody's. */
function inFlightTwice({ lines }: Facts, { zombies = [], ordered }: Expected): string[] {
  const found: string[] = []
  const out = new Map<string, Line>()
  const keys = new Map<string, Line>()
  for (const line of lines) {
    const { what, relay, id, key } = line
    if (zombies.includes(relay)) continue
    if (what === 'died') {
      for (const map of [out, keys]) for (const [name, other] of map) if (other.relay === relay) map.delete(name)
    } else if (what === 'start') {
      const other = out.get(id!)
      if (other !== undefined) found.push(`in flight twice: ${id} at ${other.relay} and ${relay}`)
      const sibling = key === undefined || ordered === false ? undefined : keys.get(key)
      if (sibling !== undefined)
        found.push(`key in flight twice: ${key} with ${sibling.n} at ${sibling.relay} and ${line.n} at ${relay}`)
      out.set(id!, line)
      if (key !== undefined) keys.set(key, line)
    } else if (what === 'ok' || what === 'failed' || what === 'down') {
      out.delete(id!)
      if (key !== undefined && keys.get(key)?.id === id) keys.delete(key)
    }
  }
  return found
}

/** An event goes out when all before it of its key have arrived, or are dead. */
function outOfOrder({ ledger, lines }: Facts, { dead = [], zombies = [] }: Expected): string[] {
  const queues = new Map<string, { id: string; n: number }[]>()
  for (const { id, key, n } of ledger) {
    if (key === null || dead.includes(id)) continue
    const queue = queues.get(key)
    if (queue === undefined) queues.set(key, [{ id, n }])
    else queue.push({ id, n })
  }
  for (const queue of queues.values()) queue.sort((a, b) => a.n - b.n)
  const next = new Map<string, number>()
  const arrived = new Set<string>()
  const found: string[] = []
  for (const { what, id, key, n, relay } of lines) {
    if (key === undefined || (what !== 'start' && what !== 'ok')) continue
    const queue = queues.get(key) ?? []
    let place = next.get(key) ?? 0
    if (what === 'ok') {
      arrived.add(id!)
      while (place < queue.length && arrived.has(queue[place]!.id)) place++
      next.set(key, place)
    } else if (place < queue.length && n! > queue[place]!.n && !zombies.includes(relay) && !dead.includes(id!)) {
      found.push(`out of order: ${key} ${n} went out before ${queue[place]!.n} had arrived`)
    }
  }
  return found
}

function repeated({ lines }: Facts, { duplicates = 0 }: Expected): string[] {
  const counts = new Map<string, number>()
  for (const { what, id } of lines) if (what === 'ok') counts.set(id!, (counts.get(id!) ?? 0) + 1)
  const again = [...counts].filter(([, count]) => count > 1)
  if (again.length <= duplicates) return []
  return [`repeated: ${again.length} events arrived more than once, ${duplicates} may; ${again[0]![0]} among them`]
}

function chargedWrongly({ rows }: Facts, { charged = false, dead = [] }: Expected): string[] {
  if (charged) return []
  return rows
    .filter(({ id, attempts }) => attempts > 0 && !dead.includes(id))
    .map(({ id, attempts }) => `charged: ${id} has spent ${attempts} attempts`)
}

/** Every event has had its effect, once. */
export async function effectProblems(pool: pg.Pool): Promise<string[]> {
  const { rows } = await pool.query(
    `SELECT ledger.event_id AS id, count(effects.event_id)::int AS times
     FROM ledger LEFT JOIN effects USING (event_id) GROUP BY 1 HAVING count(effects.event_id) <> 1`,
  )
  return rows.map(({ id, times }) => `effects: ${id} had its effect ${times} times`)
}

/** Every event has caused two others, each once, which are in the outbox of the consumer. */
export async function outputProblems(pool: pg.Pool): Promise<string[]> {
  const { rows } = await pool.query(
    `SELECT COALESCE(ledger.event_id::text, output.cause) AS id, array_agg(output.part ORDER BY output.part) AS parts
     FROM ledger FULL JOIN (
       SELECT attributes -> 'extensions' ->> 'causationid' AS cause, payload ->> 'part' AS part FROM billing_outbox
     ) AS output ON output.cause = ledger.event_id::text GROUP BY 1`,
  )
  const wrong = rows.filter(({ parts }) => parts.join() !== '1,2')
  return wrong.map(({ id, parts }) => `outputs: ${id} has caused ${parts.join()}, not 1,2`)
}
