import { AsyncLocalStorage } from 'node:async_hooks'
import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import type { Message } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { type AnySaga, SagaAdmin, SagaRunner, sagaReplies } from '../../src/saga/index.ts'
import { seededRandom } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { describeWith, freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { answer, context, Refused, Shipped, shipping } from './shipping.ts'

/** Where the order of two actors matters: who locks the saga, and who commits. The deadline claims it before. */
const LOCKED = [/^SELECT 1 AS locked/, /^COMMIT/]
const CLAIMED = [/^WITH now AS/, /^WITH saga AS/, /^COMMIT/]
/** Of one message in two hands the inbox lets one through, and the other waits for how that ends. */
const KNOWN = [/^INSERT INTO "processed_messages"/, /^COMMIT/]

const orders = [...schedules({ reply: 2, again: 2, deadline: 3, operator: 2 })]
const count = scale({ test: 10, full: 100, torture: orders.length })
const STAGES = scale({ test: 1, full: 2, torture: 4 })

/** Two replies to one request, and where they wait. */
const PAIRS = {
  'two successes': { points: LOCKED, second: Shipped({ parcel: 1 }) },
  'a success and a refusal': { points: LOCKED, second: Refused({}) },
  'one success in two hands': { points: KNOWN, second: undefined },
} as const
type Pair = keyof typeof PAIRS

describeWith(['postgres'], 'everybody at once on one saga', () => {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  test.each(Object.keys(PAIRS) as Pair[])(
    `%s, a deadline and an operator's compensate: ${count} of ${orders.length} orders of their statements`,
    {
      timeout: scale({ test: 60_000, full: 120_000, torture: 3_600_000 }),
    },
    async (pair) => {
      const chosen = some(count)
      // Each has a database of its own: while one waits for its statements, others go on.
      const stages = await Promise.all(Array.from({ length: STAGES }, () => stage(pair)))
      const undos = new Map<number, number>()
      const left = chosen.values()
      let done = 0
      const work = async (play: (order: readonly string[]) => Promise<number>) => {
        for (const order of left) {
          const seen = await play(order)
          undos.set(seen, (undos.get(seen) ?? 0) + 1)
          if (++done % 500 === 0) console.log(`${pair}: ${done} of ${chosen.length} orders`)
        }
      }
      await Promise.all(stages.map(work))
      expect(done).toBe(chosen.length)
      // The success came in time for one undo, or late, for a second one.
      expect([...undos.keys()].sort()).toEqual([1, 2])
    },
  )

  async function stage(pair: Pair): Promise<(order: readonly string[]) => Promise<number>> {
    const database = await freshDatabase('postgres')
    ends.push(() => database.drop())
    const watcher = new pg.Pool({ connectionString: database.url, max: 1 })
    ends.push(() => watcher.end())
    const pool = new pg.Pool({ connectionString: database.url, max: 12 })
    ends.push(() => pool.end())
    const actors = new AsyncLocalStorage<Actor>()
    pool.on('connect', (client) => {
      const send = client.query.bind(client) as (...args: unknown[]) => Promise<pg.QueryResult>
      const pid = (client as unknown as { processID: number }).processID
      client.query = ((...args: unknown[]) => {
        const [given] = args
        const text = typeof given === 'string' ? given : ((given as { text?: string })?.text ?? '')
        const actor = actors.getStore()
        return actor === undefined ? send(...args) : actor.sends(text, pid, () => send(...args))
      }) as typeof client.query
    })
    const db = postgres({ pool, sagas: true })
    await db.migrate()
    const one = shipping({ within: '1ms', refused: Refused }) as AnySaga
    const replies = sagaReplies({ store: db, sagas: [one] })
    const admin = new SagaAdmin<pg.PoolClient>({ store: db, sagas: [one] })
    const runnerOf = () => new SagaRunner<pg.PoolClient>({ store: db, sagas: [one] })
    const waits: Waits = async (pid) => {
      const { rows } = await watcher.query('SELECT cardinality(pg_blocking_pids($1)) > 0 AS waits', [pid])
      return rows[0].waits
    }
    /** What the saga has sent, in order. */
    async function sent(id: string): Promise<Message[]> {
      const { rows } = await pool.query(
        `SELECT event_id FROM outbox WHERE attributes->'extensions'->>'sagaid' = $1 ORDER BY sequence`,
        [id],
      )
      return Promise.all(rows.map(async ({ event_id }) => (await db.outbox.admin.show(event_id))!.message))
    }
    let played = 0

    return async (order) => {
      const first = runnerOf()
      const id = await db.withTransaction((tx) => first.client(one).start(tx, { id: `order ${++played}` }))
      await first.runOnce()
      await first.stop()
      const [request] = await sent(id)
      const { points, second } = PAIRS[pair]
      const reply = await answer(request!, Shipped({ parcel: 1 }))
      const again = second === undefined ? reply : await answer(request!, second)
      const runner = runnerOf()
      const all: Record<string, Actor> = {
        reply: new Actor(points, waits, async () => replies.handle(reply, context)),
        again: new Actor(points, waits, async () => replies.handle(again, context)),
        deadline: new Actor(CLAIMED, waits, () => runner.runOnce()),
        operator: new Actor(LOCKED, waits, () => admin.compensate(id, { by: 'ann', note: 'no longer wanted' })),
      }
      const everybody = Object.values(all)
      // All have come to their next point, or wait for another's lock: what follows comes after all of that.
      const settled = () => Promise.all(everybody.map((actor) => actor.settled()))
      for (const actor of everybody) actors.run(actor, () => actor.start())
      await settled()
      for (const name of order) {
        all[name]!.step()
        await settled()
      }
      await Promise.all(everybody.map((actor) => actor.finish()))
      await eventually('it has ended', async () => {
        await runner.runOnce()
        return (await db.sagas.load(undefined, id))!.endedAt !== undefined
      })
      await runner.stop()
      const { status, steps } = (await db.sagas.load(undefined, id))!
      const messages = await sent(id)
      const about = `${order.join(' ')}: ${status} ${JSON.stringify(steps.map((step) => step.status))}`
      expect(
        everybody.map(({ error }) => error),
        about,
      ).toEqual([undefined, undefined, undefined, undefined])
      // No reply is lost, late or not; every undo is a message; what succeeded is undone, since somebody wants that.
      const ship = steps[1]!
      expect(ship.executed, about).toBe(true)
      expect(messages.filter(({ type }) => type === 'ship.cancel').length, about).toBe(ship.undos)
      expect(messages.length, about).toBe(ship.sends)
      expect(status, about).toBe('compensated')
      expect(ship.undos, about).toBeGreaterThan(0)
      // The bill may have been intended, and never written.
      expect([steps[0]!.status, ship.status], about).toEqual(['compensated', 'compensated'])
      return ship.undos
    }
  }
})

/** Whether this backend waits for a lock of another. */
type Waits = (pid: number) => Promise<boolean>

/** Somebody whose statements wait at certain points, one after the other, until it is their turn. */
class Actor {
  readonly #points: readonly RegExp[]
  readonly #waits: Waits
  readonly #work: () => Promise<unknown>
  #passed = 0
  #done = false
  #free = false
  #gate: (() => void) | undefined
  #moved: (() => void) | undefined
  /** Whose statement is on its way. */
  #backend: number | undefined
  error: unknown

  constructor(points: readonly RegExp[], waits: Waits, work: () => Promise<unknown>) {
    this.#points = points
    this.#waits = waits
    this.#work = work
  }

  start(): void {
    this.#work()
      .catch((error) => {
        this.error = error
      })
      .finally(() => {
        this.#done = true
        this.#moved?.()
      })
  }

  /** At a point, when it is its turn. */
  async sends(text: string, backend: number, send: () => Promise<pg.QueryResult>): Promise<pg.QueryResult> {
    if (!this.#free && this.#points[this.#passed]?.test(text) === true) {
      this.#passed++
      await new Promise<void>((resolve) => {
        this.#gate = resolve
        this.#moved?.()
      })
    }
    this.#backend = backend
    try {
      return await send()
    } finally {
      this.#backend = undefined
      this.#moved?.()
    }
  }

  /** One point further, if it is at one. */
  step(): void {
    this.#gate?.()
    this.#gate = undefined
  }

  async finish(): Promise<void> {
    this.#free = true
    this.step()
    while (!this.#done) await this.#change(20)
  }

  /** Until it is at a point or done, or waits for a lock. */
  async settled(): Promise<void> {
    while (!this.#done && this.#gate === undefined) {
      await this.#change(this.#backend === undefined ? 20 : 1)
      const backend = this.#backend
      if (!this.#done && this.#gate === undefined && backend !== undefined && (await this.#waits(backend))) return
    }
  }

  async #change(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms)
      this.#moved = () => {
        clearTimeout(timer)
        resolve()
      }
    })
    this.#moved = undefined
  }
}

/** Every order of so many steps of each. */
function* schedules(left: Readonly<Record<string, number>>): Generator<readonly string[]> {
  const names = Object.keys(left).filter((name) => left[name]! > 0)
  if (names.length === 0) yield []
  for (const name of names) for (const rest of schedules({ ...left, [name]: left[name]! - 1 })) yield [name, ...rest]
}

/** So many of them; the deadline before both replies is always among them. */
function some(count: number): readonly (readonly string[])[] {
  if (count === orders.length) return orders
  const random = seededRandom(15)
  const lateFirst = orders.find((order) => order.slice(0, 3).every((name) => name === 'deadline'))!
  const chosen = [orders[0]!, lateFirst]
  while (chosen.length < count) chosen.push(orders[Math.floor(random.next() * orders.length)]!)
  return chosen
}
