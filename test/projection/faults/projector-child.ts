import pg from 'pg'
import { Reject } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { type Projection, Projector } from '../../../src/projection/index.ts'
import { crashPoint } from '../../../src/testing/index.ts'
import { CREATE, orders } from '../shop.ts'

/** A projector with named points, at which it is killed or suspends itself. */
interface Job {
  readonly url: string
  readonly lease: number
  /** After how long the server ends a transaction in which it was suspended. */
  readonly idle?: number
  /** How many views, each in a table of its own. */
  readonly views?: number
  /** Buyers are known. */
  readonly mended?: boolean
  readonly batch?: number
  /** The point at which it stops in its tracks, once. */
  readonly suspendAt?: string
}
const {
  url,
  lease,
  idle = 500,
  views = 1,
  mended = true,
  batch = 5,
  suspendAt,
} = JSON.parse(process.env['JOB']!) as Job
const pool = new pg.Pool({ connectionString: url, max: 20 })
pool.on('error', () => {})
const db = postgres({ pool, outbox: { log: true }, projections: { idleTimeout: idle } })

let suspended = false
function point(name: string): void {
  crashPoint(name)
  if (name !== suspendAt || suspended) return
  suspended = true
  console.log('suspended')
  process.kill(process.pid, 'SIGSTOP')
}

/** Calls of the store, with a point before and after each. */
const store = new Proxy(db.projections, {
  get(target, property) {
    const value = Reflect.get(target, property, target)
    if (typeof value !== 'function') return value
    return async (...given: unknown[]) => {
      const empty = property === 'park' && (given[2] as unknown[]).length === 0
      if (!empty) point(`before-${String(property)}`)
      const result = await value.apply(target, given)
      if (!empty) point(`after-${String(property)}`)
      if (property !== 'view') return result
      return new Proxy(result, {
        get(view, member) {
          const inner = Reflect.get(view, member, view)
          if (member !== 'write') return typeof inner === 'function' ? inner.bind(view) : inner
          return async (...args: unknown[]) => {
            const written = await inner.apply(view, args)
            point('after-write')
            return written
          }
        },
      })
    }
  },
})
const crashing = {
  projections: store,
  leadership: (scope: string) => db.leadership(scope),
  async withTransaction<T>(fn: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
    const value = await db.withTransaction(async (tx) => {
      const result = await fn(tx)
      point('before-commit')
      return result
    })
    point('after-commit')
    return value
  },
}
const names = (id: string) => {
  if (!mended && id === 'nobody') throw new Reject('there is no such buyer')
  return `name of ${id}`
}
const list: Projection[] = Array.from({ length: views }, (_, i) => {
  const table = i === 0 ? 'order_list_view' : `order_list_view_${i}`
  return orders(names, { table, version: i + 1, create: CREATE })
})
const options = { lease, batch, poll: 100, parked: { backoff: { min: 50, max: 50, jitter: 0 } } }
await new Projector({ store: crashing, log: db.log, projections: list, ...options }).start()
console.log('ready')
setInterval(() => {}, 1000)
