import type { Redis } from 'ioredis'
import { Relay } from 'waybill'
import { OK } from 'waybill/adapter'
import { type RedisOutbox, redis } from 'waybill/redis'
import { interleave } from '../measure.ts'
import { order, placed } from '../pg-events.ts'
import { flying, type Measured, measured, ratesOf } from './contest.ts'

const IN_FLIGHT = 100
const BATCH = 1000
const LEASE = 60_000

/**
 * The least that is an outbox whose events keep the order of their keys, as ours do: an entry and its place, of which a
 * key has one at a time. No states, attempts, retries, checks, or repair.
 */
const ENQUEUE = `local sequence = redis.call('INCR', KEYS[3])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if redis.call('HSETNX', KEYS[4], ARGV[2], ARGV[1]) == 1 then
  redis.call('ZADD', KEYS[2], sequence, ARGV[1])
else
  redis.call('RPUSH', KEYS[5] .. ARGV[2], sequence .. ':' .. ARGV[1])
end
return sequence`

/** Claimed with a lease, so that a crash loses nothing. */
const CLAIM = `local now = redis.call('TIME')
local ids = redis.call('ZRANGE', KEYS[2], 0, ARGV[1] - 1)
if #ids == 0 then return { ids, ids } end
redis.call('ZREM', KEYS[2], unpack(ids))
local leased = {}
for i, id in ipairs(ids) do leased[2 * i - 1], leased[2 * i] = now[1] * 1000 + ARGV[2], id end
redis.call('ZADD', KEYS[3], unpack(leased))
return { ids, redis.call('HMGET', KEYS[1], unpack(ids)) }`

/** Fenced: only what is still leased. What follows in its key is next. */
const SETTLE = `local done, heads, free, pending = {}, {}, {}, {}
for i = 1, #ARGV, 2 do
  local id, key = ARGV[i], ARGV[i + 1]
  if redis.call('ZSCORE', KEYS[2], id) then
    done[#done + 1] = id
    local following = redis.call('LPOP', KEYS[5] .. key)
    if following then
      local sequence, next = string.match(following, '^(%d+):(.*)$')
      heads[#heads + 1], heads[#heads + 2] = key, next
      pending[#pending + 1], pending[#pending + 2] = sequence, next
    else
      free[#free + 1] = key
    end
  end
end
if #done == 0 then return 0 end
redis.call('ZREM', KEYS[2], unpack(done))
redis.call('HDEL', KEYS[1], unpack(done))
if #free > 0 then redis.call('HDEL', KEYS[4], unpack(free)) end
if #heads > 0 then
  redis.call('HSET', KEYS[4], unpack(heads))
  redis.call('ZADD', KEYS[3], unpack(pending))
end
return #done`

const BARE = ['entries', 'pending', 'leased', 'sequence', 'heads', 'held:'].map((name) => `{bare}:${name}`)
const [ENTRIES, PENDING, LEASED, SEQUENCE, HEADS, HELD] = BARE as [string, string, string, string, string, string]

interface Scripts {
  bareEnqueue(...args: unknown[]): Promise<number>
  bareClaim(...args: unknown[]): Promise<[ids: string[], bodies: string[]]>
  bareSettle(...args: unknown[]): Promise<number>
}

export async function outboxes(client: Redis, { count, rounds }: { count: number; rounds: number }) {
  client.defineCommand('bareEnqueue', { numberOfKeys: 5, lua: ENQUEUE })
  client.defineCommand('bareClaim', { numberOfKeys: 3, lua: CLAIM })
  client.defineCommand('bareSettle', { numberOfKeys: 5, lua: SETTLE })
  const scripts = client as unknown as Scripts
  const db = redis({ client, tag: 'bench', outbox: { kind: 'stored' } })
  const { outbox } = db
  const events = Array.from({ length: count }, (_, i) => placed(i))
  const bareEnqueue = () =>
    flying(count, IN_FLIGHT, (i) => {
      const { id, source, type, time, key } = events[i]!
      const body = { specversion: '1.0', id, source, type, time, partitionkey: key, data: order(i) }
      return scripts.bareEnqueue(ENTRIES, PENDING, SEQUENCE, HEADS, HELD, id, key, JSON.stringify(body))
    })
  const ourEnqueue = () => flying(count, IN_FLIGHT, (i) => outbox.enqueueAlone(events[i]!))
  const enqueued = await interleave(
    { bare: bareEnqueue, ours: ourEnqueue },
    { rounds, before: () => client.flushall() },
  )
  const relayed = await interleave(
    {
      bare: async () => {
        await bareRelay(scripts)
        const left = await client.hlen(ENTRIES)
        if (left !== 0) throw new Error(`the bare loop left ${left} events behind`)
      },
      ours: async () => {
        await ourRelay(outbox, count)
        const left = await client.hlen(db.key('outbox:entries'))
        if (left !== 0) throw new Error(`the relay left ${left} events behind`)
      },
    },
    {
      rounds,
      before: async (name) => {
        await client.flushall()
        await (name === 'bare' ? bareEnqueue() : ourEnqueue())
      },
    },
  )
  await db.stop()
  const enqueue = measured('script outbox: enqueue', count, ratesOf(count, enqueued), {
    against: 'bare Lua',
    ours: `enqueueAlone, ${IN_FLIGHT} in flight`,
    theirs: `HSET and ZADD in a script, order by key, ${IN_FLIGHT} in flight`,
  })
  const relay = measured('script outbox: relay', count, ratesOf(count, relayed), {
    against: 'bare Lua',
    ours: `Relay, batches of ${BATCH}; claims with leases, order by key, removes`,
    theirs: `claims of ${BATCH} with leases, the next while the last settle, fenced removal, order by key; no states or attempts`,
  })
  return { enqueue, relay } satisfies Record<string, Measured>
}

async function bareRelay(scripts: Scripts): Promise<void> {
  let settled: Promise<unknown> = Promise.resolve()
  const claim = () => scripts.bareClaim(ENTRIES, PENDING, LEASED, BATCH, LEASE)
  for (let next = claim(); ; ) {
    const [ids, bodies] = await next
    if (ids.length === 0) break
    next = claim()
    const done: string[] = []
    for (const [i, body] of bodies.entries()) {
      const { specversion, partitionkey } = JSON.parse(body)
      if (specversion !== '1.0') throw new Error('not an event')
      done.push(ids[i]!, partitionkey)
    }
    await settled
    settled = scripts.bareSettle(ENTRIES, LEASED, PENDING, HEADS, HELD, ...done)
  }
  await settled
}

async function ourRelay(outbox: RedisOutbox, count: number): Promise<void> {
  let published = 0
  let reached = () => {}
  const all = new Promise<void>((resolve) => {
    reached = resolve
  })
  const to = {
    name: 'nowhere',
    features: {},
    publish: async (messages: readonly unknown[]) => {
      published += messages.length
      if (published === count) reached()
      return messages.map(() => OK)
    },
  }
  const relay = new Relay({ from: outbox, to, batch: BATCH, maxBatch: BATCH, deleteOnPublish: true })
  await relay.start()
  await all
  await relay.stop()
}
