import type { Redis } from 'ioredis'
import { Child, contestantNode } from '../pg-child.ts'
import { say } from '../pg-contest.ts'
import type { Drained } from '../pg-drain.ts'
import { installPeers, peerFile } from '../pg-peers.ts'
import { type Measured, measured } from './contest.ts'

const CONCURRENCY = 100

/** Consuming with an inbox and a unit of work, against BullMQ: both do the work of a message once, and know it. */
export async function againstBullmq(
  client: Redis,
  url: string,
  { count, rounds }: { count: number; rounds: number },
): Promise<Measured & { version: string }> {
  const { bullmq: version } = await installPeers(say)
  const node = await contestantNode(say)
  const children = {
    ours: new Child(node.path, new URL('./inbox-child.ts', import.meta.url), { url }),
    theirs: new Child(node.path, peerFile('bullmq'), { url, concurrency: CONCURRENCY }),
  }
  const rates = { ours: [] as number[], theirs: [] as number[] }
  try {
    for (const child of Object.values(children)) await child.next()
    for (let i = -1; i < rounds; i++) {
      for (const name of i % 2 === 0 ? (['ours', 'theirs'] as const) : (['theirs', 'ours'] as const)) {
        await client.flushall()
        children[name].send(JSON.stringify({ name: `r${i}`, events: count }))
        const { ms } = await children[name].next<Drained>()
        say(`consume with inbox ${i + 1}/${rounds} ${name}: ${Math.round((count / ms) * 1000)}/s`)
        if (i >= 0) rates[name].push((count / ms) * 1000)
      }
    }
  } finally {
    await Promise.all(Object.values(children).map((child) => child.end()))
  }
  const how = {
    against: 'BullMQ',
    ours: 'transactional(db): inbox, unit of work, then ack; reads of 500, 1000 at once',
    theirs: `one worker, concurrency ${CONCURRENCY}, removeOnComplete, addBulk beforehand`,
  }
  return { ...measured('consume with inbox', count, rates, how), version }
}
