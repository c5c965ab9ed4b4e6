import { type Clock, telemetry } from '../core/index.ts'
import type { Demand } from '../flow/index.ts'
import type { State } from '../outbox/admin.ts'
import { publishExpired } from '../outbox/waiting.ts'
import { LazyHeap } from './heap.ts'
import type { Row } from './row.ts'

/** What a part of the outbox has to offer: rows that are ready, and those that wait for a time. */
class ShardQueues {
  readonly ready = new LazyHeap<Row>(
    (row) => row.sequence,
    (row) => row.state === 'ready' && row.delivery === undefined && !row.removed,
  )
  readonly timers = new LazyHeap<Timer>(
    ({ at }) => at,
    ({ row, at }) => row.availableAt === at && waits(row.state) && !row.removed,
  )
}

interface Timer {
  readonly row: Row
  readonly at: number
}

export interface TakeOptions {
  /** Which part, see `partition`. */
  readonly shard: number
  /** Which states of earlier events of its key hold an event back: none, for those who keep no order. */
  readonly blockers: readonly Blocker[]
  /** The most attempts an event has. */
  readonly attempts: number
  /** Makes it the taker's own. */
  readonly claim: (row: Row) => void
}

/**
 * The events, and queues of what can be done next: nothing that cannot be taken now is looked at to find what can.
 * A row changes its state by `become` only.
 */
export class Table {
  readonly name: string
  readonly rows = new Map<string, Row>()
  /** Called when there may be something to take. */
  readonly waiting = new Set<() => void>()
  readonly #clock: Clock
  readonly #keys = new Map<string, KeyRows>()
  #shards = [new ShardQueues()]
  #sequence = 0

  constructor(name: string, clock: Clock) {
    this.name = name
    this.#clock = clock
  }

  now(): number {
    return this.#clock.now()
  }

  /** As in a database: drawn before the commit, so that a larger one may be seen before a smaller one. */
  nextSequence(): number {
    return ++this.#sequence
  }

  insert(row: Row): void {
    this.rows.set(row.eventId, row)
    this.#place(row)
  }

  remove(row: Row): void {
    this.rows.delete(row.eventId)
    row.removed = true
    this.#open(row.key)
  }

  become(row: Row, state: State, at?: number): void {
    const stopped = row.state === 'retrying' || row.state === 'dead'
    row.state = state
    row.availableAt = at
    if (state !== 'leased') row.lease = undefined
    this.#place(row)
    if (stopped) this.#open(row.key)
  }

  /** Back from an owner who has not settled it. */
  giveBack(row: Row): void {
    row.delivery = undefined
    this.#place(row)
  }

  /** Divides the rows among so many readers by key, and lets every key that was held back be looked at again. */
  partition(shards: number): void {
    if (shards !== this.#shards.length) {
      this.#shards = Array.from({ length: shards }, () => new ShardQueues())
      for (const row of this.rows.values()) if (row.state === 'ready' || waits(row.state)) this.#place(row)
    }
    for (const key of this.#keys.keys()) this.#open(key)
  }

  take({ count, bytes }: Demand, options: TakeOptions): Row[] {
    this.#promote(options.shard, options.attempts)
    const { ready } = this.#shards[options.shard]!
    const taken: Row[] = []
    for (let total = 0; taken.length < count; ) {
      const row = ready.peek()
      if (row === undefined) break
      if (row.key !== undefined && this.#keys.get(row.key)?.blocks(row, options.blockers)) {
        ready.pop()
        this.become(row, 'held')
        continue
      }
      total += row.size
      if (taken.length > 0 && total > bytes) break
      ready.pop()
      options.claim(row)
      taken.push(row)
      // One of its key that was held back may follow.
      this.#open(row.key)
    }
    return taken
  }

  /** Milliseconds until there may be something to take: 0 when there is. */
  nextIn(shard: number): number {
    const { ready, timers } = this.#shards[shard]!
    if (ready.peek() !== undefined) return 0
    const timer = timers.peek()
    return timer === undefined ? Number.POSITIVE_INFINITY : Math.max(0, timer.at - this.now())
  }

  /** What is due becomes ready. A lease that ran out counts as an attempt: its holder may have died of it. */
  #promote(shard: number, attempts: number): void {
    const { timers } = this.#shards[shard]!
    let expired = 0
    for (let timer = timers.peek(); timer !== undefined && timer.at <= this.now(); timer = timers.peek()) {
      timers.pop()
      const { row } = timer
      if (row.state === 'leased') {
        expired++
        row.attempts++
        row.lastError = 'the relay that worked on it let its lease run out'
        if (row.attempts >= attempts) {
          this.become(row, 'dead')
          this.#publishDead(row)
          continue
        }
      }
      this.become(row, 'ready')
    }
    publishExpired(this.name, expired)
  }

  #place(row: Row): void {
    const { state, availableAt, key } = row
    const queues = this.#shards[shardOf(row, this.#shards.length)]!
    if (state === 'ready') queues.ready.push(row)
    else if (waits(state)) queues.timers.push({ row, at: availableAt! })
    if (key !== undefined && (state === 'retrying' || state === 'dead' || state === 'held')) {
      const queue = this.#keys.get(key) ?? new KeyRows()
      this.#keys.set(key, queue)
      queue.add(row, state)
    }
    if (state === 'ready' || waits(state)) for (const wake of this.waiting) wake()
  }

  /** The first that is held back is looked at again; the next follows when that is taken. */
  #open(key: string | undefined): void {
    const queue = key === undefined ? undefined : this.#keys.get(key)
    if (queue === undefined) return
    const row = queue.nextHeld()
    if (row !== undefined) this.become(row, 'ready')
    else if (queue.empty) this.#keys.delete(key!)
  }

  #publishDead({ eventId: id, message, attempts: attempt, lastError, tenant, topic }: Row): void {
    const dead = { type: message.type, id, reason: lastError!, attempt, tenant: tenant || undefined, topic }
    telemetry['message.dead'].publish({ flow: this.name, table: this.name, ...dead })
  }
}

function waits(state: State): boolean {
  return state === 'scheduled' || state === 'retrying' || state === 'leased'
}

/** Events of one key are always in the same shard; those without a key are spread. */
function shardOf({ key, eventId }: Row, shards: number): number {
  if (shards === 1) return 0
  let hash = 0
  for (const char of key ?? eventId) hash = (hash * 31 + char.codePointAt(0)!) >>> 0
  return hash % shards
}

export type Blocker = 'retrying' | 'dead' | 'held'

/** Which events hold back later ones of their key, by what becomes of a key whose event is dead. */
export const BLOCKERS: Record<'block' | 'continue', readonly Blocker[]> = {
  block: ['retrying', 'dead', 'held'],
  continue: ['retrying', 'held'],
}

/** Of one key: the events that hold back later ones, and those that are held back. */
export class KeyRows {
  readonly #rows: Record<Blocker, LazyHeap<Row>> = {
    retrying: rows('retrying'),
    dead: rows('dead'),
    held: rows('held'),
  }

  add(row: Row, state: Blocker): void {
    this.#rows[state].push(row)
  }

  blocks(row: Row, blockers: readonly Blocker[]): boolean {
    return blockers.some((state) => (this.#rows[state].peek()?.sequence ?? Number.POSITIVE_INFINITY) < row.sequence)
  }

  nextHeld(): Row | undefined {
    return this.#rows.held.pop()
  }

  get empty(): boolean {
    return Object.values(this.#rows).every((heap) => heap.peek() === undefined)
  }
}

function rows(state: State): LazyHeap<Row> {
  return new LazyHeap<Row>(
    (row) => row.sequence,
    (row) => row.state === state && !row.removed,
  )
}
