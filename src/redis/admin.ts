import {
  checkOptions,
  describe,
  errorSummary,
  isUuid,
  Message,
  type RawMessage,
  Unavailable,
  uuidv7,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { listOf, numberOf, type RedisArg, type RedisReply, textOf } from '../drivers/redis/redis.ts'
import type {
  AdminAction,
  Audit,
  AuditEntries,
  AuditEntry,
  Count,
  MissingPart,
  OutboxAdmin,
  OutboxEntries,
  OutboxEntry,
  OutboxFilter,
  OutboxStats,
  Page,
  PendingFilter,
  Preview,
  State,
  StatsOptions,
} from '../outbox/admin.ts'
import {
  auditOr,
  checkAction,
  checkAudit,
  checkWindow,
  expectedOf,
  limitOf,
  MOST_AT_ONCE,
  pageOf,
  refuseUnexpected,
  replayOf,
} from '../outbox/admin-checks.ts'
import { type EntryRow, matchOf, readCursor, rowOf, rowsOf, shownOf } from './admin-filter.ts'
import { idOf, messageOf } from './row.ts'
import { outboxScripts } from './scripts.ts'
import type { MissingShard, Shard, Shards } from './shards.ts'

const SAMPLE = 10
/** One script changes at most so many: Redis does nothing else meanwhile. */
const PER_SCRIPT = 500
/** So many keys that wait are counted one by one. */
const KEYS_COUNTED = 1000
/** As outbox-stats.lua returns them. */
const COUNTED: readonly State[] = ['ready', 'scheduled', 'retrying', 'leased', 'held', 'published', 'dead']

/** What people do with an outbox on Redis. An action on many is several scripts; each has its count in the audit. */
export class RedisOutboxAdmin implements OutboxAdmin {
  readonly name: string
  readonly #shards: readonly Shard[]
  readonly #all: Shards
  readonly #retention: number

  constructor(name: string, shards: Shards, retention: number) {
    this.name = name
    this.#shards = shards.all
    this.#all = shards
    this.#retention = retention
  }

  /** Of shards that cannot be asked nothing is shown, and they are named; a page that begins behind it skips them too. */
  async list(filter: OutboxFilter = {}, page: Page = {}): Promise<OutboxEntries> {
    const { limit, after } = pageOf('list', page)
    const match = matchOf('list', filter)
    const place = after === undefined ? undefined : readCursor(after)
    // One that goes away while it is read is missing too: those that are left are read once more.
    for (let tries = this.#shards.length; ; tries--) {
      const { answers, missing } = await this.#present()
      try {
        const rows = await firstOf(rowsOf(answers, match, place), limit)
        return withMissing(rows.map(shownOf), missing)
      } catch (error) {
        if (!(error instanceof Unavailable) || tries === 1) throw error
      }
    }
  }

  /** Shards that can be asked. With only one the question itself fails. */
  #present(): Promise<{ answers: readonly Shard[]; missing: readonly MissingShard[] }> {
    return this.#all.ask(async (shard) => {
      if (this.#shards.length > 1) await shard.run(outboxScripts.stats, ['1'])
      return shard
    })
  }

  async show(eventId: string): Promise<{ readonly entry: OutboxEntry; readonly message: RawMessage } | undefined> {
    if (!isUuid(eventId)) {
      throw new WaybillError('INVALID_OPTION', `show: ${describe(eventId)} is not an event id, which is a UUID`)
    }
    const { answers, missing } = await this.#all.ask((shard) => rowOf([shard], eventId.toLowerCase()))
    const row = answers.find((found) => found !== undefined)
    // It may be there.
    if (row === undefined && missing.length > 0) throw missing[0]!.error
    return row === undefined ? undefined : { entry: shownOf(row), message: messageAsItIs(row) }
  }

  async preview(action: AdminAction, filter: OutboxFilter): Promise<Preview> {
    const sample: OutboxEntry[] = []
    let count = 0
    for await (const row of rowsOf(this.#shards, matchOf(checkAction(action), filter, action))) {
      if (count === MOST_AT_ONCE) return { count, exact: false, sample }
      if (count++ < SAMPLE) sample.push(shownOf(row))
    }
    return { count, exact: true, sample }
  }

  async rearm(filter: OutboxFilter, audit?: Audit, options: { limit?: number } = {}): Promise<number> {
    const who = auditOr('rearm', audit)
    const rows = await this.#find('rearm', filter, limitOf('rearm', options))
    return this.#act('rearm', filter, who, rows)
  }

  async discardDead(filter: OutboxFilter, audit: Audit, options: { limit?: number } = {}): Promise<number> {
    const limit = limitOf('discardDead', options)
    checkAudit('discardDead', audit)
    return this.#act('discard-dead', filter, audit, await this.#find('discard-dead', filter, limit))
  }

  async discardPending(filter: PendingFilter, audit: Audit, options: { expected: number }): Promise<number> {
    checkWindow(filter)
    checkAudit('discardPending', audit)
    const expected = expectedOf(options)
    const rows = await this.#find('discard-pending', filter, expected + 1)
    refuseUnexpected(rows.length, expected)
    return this.#act('discard-pending', filter, audit, rows)
  }

  async replay(
    filter: OutboxFilter,
    audit?: Audit,
    options: { asNew?: boolean; limit?: number } = {},
  ): Promise<number> {
    const who = auditOr('replay', audit)
    const { asNew, limit } = replayOf(options)
    const rows = await this.#find('replay', filter, limit + 1)
    if (rows.length > limit) {
      const advice = 'nothing was sent; narrow the filter, or give a larger limit'
      throw new WaybillError('TOO_MANY', `replay: more than ${limit} events match; ${advice}`)
    }
    // In the order they were written; a list shows the newest first.
    rows.sort((a, b) => Number(a.member.slice(0, 16)) - Number(b.member.slice(0, 16)))
    return this.#act('replay', filter, who, rows, asNew)
  }

  /** Of shards that cannot be asked no line is shown, and none of their counts; they are named. */
  async audits(page: Page = {}): Promise<AuditEntries> {
    const { limit, after } = pageOf('audits', page)
    if (after !== undefined && !/^\d{16}$/.test(after)) {
      throw new WaybillError('INVALID_OPTION', `audits: after: ${describe(after)} is not the id of a line`)
    }
    const lines = new Map<string, AuditEntry>()
    const { answers, missing } = await this.#all.ask((shard) => shard.run(outboxScripts.audits, []))
    for (const answer of answers) {
      const [texts, numbers] = listOf(answer)
      const counts = pairsOf(numbers)
      for (const [id, text] of pairsOf(texts)) {
        const at = text.indexOf(' ')
        const about = JSON.parse(text.slice(at + 1)) as Omit<AuditEntry, 'id' | 'at' | 'count'>
        // An action on several shards is one line, with one id.
        const count = (lines.get(id)?.count ?? 0) + Number(counts.get(id) ?? 0)
        lines.set(id, { ...about, id, at: new Date(Number(text.slice(0, at))), count })
      }
    }
    const entries = [...lines.values()]
      .filter(({ id }) => after === undefined || id < after)
      .sort((a, b) => (a.id < b.id ? 1 : -1))
      .slice(0, limit)
    return withMissing(entries, missing)
  }

  async stats(_options: StatsOptions = {}): Promise<OutboxStats> {
    const states = Object.fromEntries(COUNTED.map((state) => [state, { count: 0, estimated: false }]))
    const blockedKeys = { count: 0, estimated: false }
    let oldest = -1
    const { answers, missing } = await this.#all.ask((shard) => shard.run(outboxScripts.stats, [String(KEYS_COUNTED)]))
    for (const answer of answers) {
      const cells = listOf(answer)
      for (const [i, state] of COUNTED.entries()) states[state]!.count += numberOf(cells[i])
      blockedKeys.count += numberOf(cells[7])
      blockedKeys.estimated ||= textOf(cells[8]) === '1'
      oldest = Math.max(oldest, numberOf(cells[9]))
    }
    return {
      states: states as Record<State, Count>,
      oldestReadySeconds: oldest < 0 ? undefined : oldest / 1000,
      blockedKeys,
      ...(missing.length === 0 ? {} : { missing: partsOf(missing) }),
    }
  }

  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('clean', options, { retention: true, limit: true })
    const retention = wholeNumber('clean: retention', options.retention ?? this.#retention, { min: 0 })
    const limit = wholeNumber('clean: limit', options.limit ?? 10_000, { max: 1_000_000 })
    let count = 0
    // One whose server is away must not keep the others from being cleaned.
    await this.#all.each(async (shard) => {
      for (let page = 1; page > 0 && count < limit; count += page) {
        const most = String(Math.min(PER_SCRIPT, limit - count))
        page = numberOf(await shard.run(outboxScripts.clean, [String(retention), most]))
      }
    })
    return count
  }

  async #find(action: AdminAction, filter: OutboxFilter, limit: number): Promise<EntryRow[]> {
    return await firstOf(rowsOf(this.#shards, matchOf(action, filter, action)), limit)
  }

  async #act(
    action: AdminAction,
    filter: OutboxFilter,
    { by, note }: Audit,
    rows: readonly EntryRow[],
    asNew = false,
  ): Promise<number> {
    let id = ''
    const line = JSON.stringify({ action, by, note, filter: asNew ? { ...filter, asNew } : filter })
    const name = asNew ? 'replay-new' : action
    let count = 0
    for (const shard of this.#shards) {
      const here = rows.filter((row) => row.shard === shard)
      const first = shard === this.#shards[0]
      // An action that touches nothing has its line too.
      for (let from = 0; from < here.length || (first && from === 0); from += PER_SCRIPT) {
        const part = here.slice(from, from + PER_SCRIPT)
        const words: RedisArg[] = asNew ? part.flatMap(copyOf) : part.map(({ member }) => member)
        const answer = listOf(await shard.run(outboxScripts.act, [name, id, line, ...words]))
        count += numberOf(answer[0])
        id = textOf(answer[1])
      }
    }
    return count
  }
}

async function firstOf(rows: AsyncIterable<EntryRow>, limit: number): Promise<EntryRow[]> {
  const first: EntryRow[] = []
  for await (const row of rows) {
    first.push(row)
    if (first.length === limit) break
  }
  return first
}

/** What was found, with the parts that could not be asked, if any. */
function withMissing<T>(found: T[], missing: readonly MissingShard[]): T[] & { readonly missing?: MissingPart[] } {
  return missing.length === 0 ? found : Object.assign(found, { missing: partsOf(missing) })
}

/** By their tags, as they were given. */
function partsOf(missing: readonly MissingShard[]): MissingPart[] {
  return missing.map(({ shard, error }) => ({ part: shard.store.tag, reason: errorSummary(error) }))
}

/** Of an entry that cannot be read, all its bytes: somebody has to find out what it was. */
function messageAsItIs({ member, body }: EntryRow & { readonly body: Buffer }): RawMessage {
  try {
    return messageOf(idOf(member), body)
  } catch {
    return new Message<string | Uint8Array>({ id: idOf(member), source: '', type: '' }, new Uint8Array(body), 'raw')
  }
}

/** The same event under an id of its own. */
function copyOf({ member, header }: EntryRow): string[] {
  const { id: _, ...rest } = header
  return [member, uuidv7(), JSON.stringify(rest)]
}

function pairsOf(reply: RedisReply | undefined): Map<string, string> {
  const cells = listOf(reply).map(textOf)
  return new Map(Array.from({ length: cells.length / 2 }, (_, i) => [cells[i * 2]!, cells[i * 2 + 1]!]))
}
