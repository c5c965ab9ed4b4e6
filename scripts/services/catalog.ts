/** Every server the tests may ask for, one entry each. `needed.ts` says which of them are asked for now. */
import { kafka } from './kinds/kafka.ts'
import { nats } from './kinds/nats.ts'
import { pgbouncer } from './kinds/pgbouncer.ts'
import { postgres, postgres15 } from './kinds/postgres.ts'
import { rabbitmq, rabbitmq4 } from './kinds/rabbitmq.ts'
import { redis, redis6 } from './kinds/redis.ts'
import type { Entry } from './types.ts'

export const catalog: Record<string, Entry> = Object.fromEntries(
  [postgres, postgres15, pgbouncer, redis, redis6, rabbitmq, rabbitmq4, nats, kafka].map((entry) => [
    entry.name,
    entry,
  ]),
)

/** Refuses names that are not in the catalog, with the nearest one that is. */
export function known(names: string[]): Entry[] {
  return names.map((name) => {
    const entry = catalog[name]
    if (entry) return entry
    const all = Object.keys(catalog)
    const nearest = all.toSorted((a, b) => distance(name, a) - distance(name, b))[0]!
    const hint = distance(name, nearest) <= 3 ? `did you mean '${nearest}'?` : `known: ${all.join(', ')}`
    throw new Error(`unknown service '${name}'; ${hint}`)
  })
}

/** Letters to insert, delete or replace to get from one word to the other. */
function distance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, index) => index)
  for (let i = 1; i <= from.length; i++) {
    const next = [i]
    for (let j = 1; j <= to.length; j++) {
      const replaced = row[j - 1]! + (from[i - 1] === to[j - 1] ? 0 : 1)
      next.push(Math.min(replaced, row[j]! + 1, next[j - 1]! + 1))
    }
    row = next
  }
  return row[to.length]!
}
