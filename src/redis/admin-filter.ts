import { describe, WaybillError } from '../core/index.ts'
import { listOf, numberOf, type RedisReply, textOf } from '../drivers/redis/redis.ts'
import type { AdminAction, OutboxEntry, OutboxFilter, State } from '../outbox/admin.ts'
import { checkFilter, SHOWN, statesOf } from '../outbox/admin-checks.ts'
import { type Header, headerOf, idOf } from './row.ts'
import { outboxScripts } from './scripts.ts'
import type { Shard } from './shards.ts'

const PAGE = 200

/** Where an entry stands: its state, its score there, its place among those with the same. */
export interface Place {
  readonly state: State
  readonly score: string
  readonly place: string
}

export interface EntryRow extends Place {
  readonly shard: Shard
  readonly member: string
  readonly attempts: number
  readonly createdAt: number
  readonly due: number
  readonly at: number
  readonly key: string | undefined
  readonly lastError: string | undefined
  /** Of an entry that cannot be read only what its state says is known. */
  readonly header: Partial<Header>
}

export interface Match {
  readonly states: readonly State[]
  readonly eventIds: readonly string[] | undefined
  readonly test: (row: EntryRow) => boolean
}

/** What the filter lets through; for an action, only states it may touch. Wrong filters are refused at once. */
export function matchOf(where: string, filter: OutboxFilter, action?: AdminAction): Match {
  checkFilter(where, filter)
  const { eventIds, tenant, topic, type, key, since, until } = filter
  const wanted = statesOf(where, filter, action)
  return {
    states: SHOWN.filter((state) => wanted.includes(state)),
    eventIds: eventIds?.map((id) => id.toLowerCase()),
    test: ({ header, createdAt, ...row }) =>
      (tenant === undefined || (header.tenant ?? '') === tenant) &&
      (topic === undefined || header.topic === topic) &&
      (type === undefined || header.type === type) &&
      (key === undefined || row.key === key) &&
      (since === undefined || createdAt >= since.getTime()) &&
      (until === undefined || createdAt < until.getTime()),
  }
}

/** Entries that match, state by state and in their order, from behind `after`. Read page by page, as far as is asked. */
export async function* rowsOf(shards: readonly Shard[], match: Match, after?: Place): AsyncGenerator<EntryRow> {
  const { states, eventIds, test } = match
  if (eventIds !== undefined) {
    const found = await Promise.all(eventIds.map((id) => rowOf(shards, id)))
    const rows = found.filter((row) => row !== undefined).filter((row) => states.includes(row.state) && test(row))
    yield* rows.sort(compare).filter((row) => after === undefined || compare(row, after) > 0)
    return
  }
  for (const state of states) {
    if (after !== undefined && SHOWN.indexOf(state) < SHOWN.indexOf(after.state)) continue
    const from = after?.state === state ? after : undefined
    for await (const row of merged(shards.map((shard) => entriesIn(shard, state, from)))) if (test(row)) yield row
  }
}

async function* entriesIn(shard: Shard, state: State, after: Place | undefined): AsyncGenerator<EntryRow> {
  for (let from = after, more = true; more; ) {
    const args = [state, String(PAGE), from?.score ?? '', from?.place ?? '']
    const [answer, found] = listOf(await shard.run(outboxScripts.list, args))
    more = textOf(answer) === '1'
    for (const cells of listOf(found)) {
      const [score, place, ...shown] = listOf(cells)
      const row = readRow(shard, textOf(score), textOf(place), shown)
      from = row
      // What is scheduled and due is ready.
      yield { ...row, state }
    }
    if (listOf(found).length === 0) return
  }
}

/** Several lists merged into one order. */
async function* merged(lists: readonly AsyncGenerator<EntryRow>[]): AsyncGenerator<EntryRow> {
  if (lists.length === 1) return yield* lists[0]!
  const heads = await Promise.all(lists.map((one) => one.next()))
  for (;;) {
    let first = -1
    for (const [i, head] of heads.entries()) {
      if (head.done) continue
      if (first < 0 || compare(head.value, heads[first]!.value as EntryRow) < 0) first = i
    }
    if (first < 0) return
    yield heads[first]!.value as EntryRow
    heads[first] = await lists[first]!.next()
  }
}

/** One entry, wherever it is. */
export async function rowOf(shards: readonly Shard[], id: string): Promise<(EntryRow & { body: Buffer }) | undefined> {
  for (const shard of shards) {
    const [score, place, shown, body] = listOf(await shard.run(outboxScripts.show, [id]))
    if (shown !== undefined) {
      return { ...readRow(shard, textOf(score), textOf(place), listOf(shown)), body: body as Buffer }
    }
  }
  return undefined
}

function readRow(shard: Shard, score: string, place: string, cells: readonly RedisReply[]): EntryRow {
  const [member, state, attempts, createdAt, due, at, key, error, header] = cells
  return {
    shard,
    score,
    place,
    member: textOf(member),
    state: textOf(state) as State,
    attempts: numberOf(attempts),
    createdAt: numberOf(createdAt),
    due: numberOf(due),
    at: numberOf(at),
    key: key === null ? undefined : textOf(key),
    lastError: error === null ? undefined : textOf(error),
    header: readHeader(textOf(header)),
  }
}

function readHeader(text: string): Partial<Header> {
  try {
    return headerOf(text)
  } catch {
    return {}
  }
}

function compare(a: Place, b: Place): number {
  const states = SHOWN.indexOf(a.state) - SHOWN.indexOf(b.state)
  if (states !== 0) return states
  const direction = a.state === 'published' ? -1 : 1
  const scores = Number(a.score) - Number(b.score)
  if (scores !== 0) return direction * scores
  return direction * Buffer.compare(Buffer.from(a.place), Buffer.from(b.place))
}

export function shownOf(row: EntryRow): OutboxEntry {
  const { member, state, attempts, lastError, key, header, due, at, createdAt } = row
  const waits = state === 'scheduled' || state === 'retrying' ? due : state === 'leased' ? at : undefined
  return {
    eventId: idOf(member),
    sequence: String(Number(member.slice(0, 16))),
    state,
    tenant: header.tenant ?? '',
    topic: header.topic ?? '',
    key,
    type: header.type ?? '',
    version: header.version ?? 1,
    attempts,
    lastError,
    createdAt: new Date(createdAt),
    availableAt: waits === undefined ? undefined : new Date(waits),
    publishedAt: state === 'published' ? new Date(at) : undefined,
    cursor: Buffer.from(JSON.stringify([state, row.score, row.place])).toString('base64url'),
  }
}

export function readCursor(cursor: string): Place {
  try {
    const [state, score, place] = JSON.parse(Buffer.from(cursor, 'base64url').toString()) as [State, string, string]
    if (SHOWN.includes(state) && typeof score === 'string' && typeof place === 'string') return { state, score, place }
  } catch {
    // Said below.
  }
  throw new WaybillError('INVALID_OPTION', `list: after: ${describe(cursor)} is not the cursor of an entry`)
}
