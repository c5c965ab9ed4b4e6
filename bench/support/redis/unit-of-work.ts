import type { Redis } from 'ioredis'
import { redis } from 'waybill/redis'
import { interleave } from '../measure.ts'
import { order, placed } from '../pg-events.ts'
import { flying, type Measured, measured, ratesOf } from './contest.ts'

const IN_FLIGHT = 16
const LEASE = 60_000
const RETENTION = 7 * 24 * 3600 * 1000

/**
 * The mark of a message taken, a hash written, an event added to a stream, the mark done. Ours in a fenced script, theirs
 * in MULTI, which has no fence: with one, by WATCH, it would need a connection for each, and be slower still.
 */
export async function unitsOfWork(
  client: Redis,
  { count, rounds }: { count: number; rounds: number },
): Promise<Measured> {
  const db = redis({ client, tag: 'bench' })
  const events = Array.from({ length: count }, (_, i) => placed(i))
  const bare = async (i: number) => {
    const mark = `{bench}:mark:${i}`
    if ((await client.set(mark, 'token', 'PX', LEASE, 'NX')) !== 'OK') throw new Error('another has it')
    const multi = client.multi()
    multi.hset(`{bench}:order:${i}`, 'total', i)
    const { id, source, type, time, key } = events[i]!
    const common = { specversion: '1.0', id, source, type, time, partitionkey: key }
    multi.xadd('{bench}:out', '*', 'event', JSON.stringify({ ...common, data: order(i) }))
    multi.set(mark, 'done', 'PX', RETENTION)
    for (const [error] of (await multi.exec())!) if (error) throw error
  }
  const ours = (i: number) =>
    db.withTransaction(async (tx) => {
      const { id, source } = events[i]!
      if ((await db.inbox.receive(tx, { subscriber: 'bench', source, id })) !== 'new') throw new Error('another has it')
      tx.hset(db.key(`order:${i}`), 'total', i)
      await db.outbox.enqueue(tx, events[i]!)
    })
  const fresh = async (work: (i: number) => Promise<unknown>) => {
    await flying(count, IN_FLIGHT, work)
  }
  const samples = await interleave(
    { bare: () => fresh(bare), ours: () => fresh(ours) },
    { rounds, before: () => client.flushall() },
  )
  await db.stop()
  const how = {
    against: 'bare MULTI',
    ours: `withTransaction, inbox, HSET, outbox; ${IN_FLIGHT} in flight, one connection`,
    theirs: `SET NX, then MULTI of HSET, XADD and SET, unfenced; ${IN_FLIGHT} in flight, one connection`,
  }
  return measured('unit of work', count, ratesOf(count, samples), how)
}
