import type { Redis } from 'ioredis'
import { WARM_UP } from '../measure.ts'
import { Child, contestantNode } from '../pg-child.ts'
import { say } from '../pg-contest.ts'
import type { Drained } from '../pg-drain.ts'
import { installPeers, peerFile } from '../pg-peers.ts'
import { type Measured, measured } from './contest.ts'

/** How many it may have under way: it gets the best of these, and so do we. */
const CONCURRENCIES = { ours: [128, 256, 1000], theirs: [50, 100, 200, 500] }

/** Consuming with an inbox and a unit of work, against BullMQ: both do the work of a message once, and know it. */
export async function againstBullmq(
  client: Redis,
  url: string,
  { count, rounds: measuredRounds }: { count: number; rounds: number },
): Promise<Measured & { versions: Record<string, string> }> {
  const { bullmq } = await installPeers(say)
  const node = await contestantNode('brokers', say)
  const start = {
    ours: (concurrency: number) =>
      new Child(node.path, new URL('./inbox-child.ts', import.meta.url), { url, concurrency }),
    theirs: (concurrency: number) => new Child(node.path, peerFile('bullmq'), { url, concurrency }),
  }
  const names = ['ours', 'theirs'] as const
  let rounds = 0
  const rateOf = async (child: Child) => {
    await client.flushall()
    child.send(JSON.stringify({ name: `r${rounds++}`, events: count }))
    return (count / (await child.next<Drained>()).ms) * 1000
  }
  const rates = { ours: [] as number[], theirs: [] as number[] }
  const best = { ours: await bestOf('ours'), theirs: await bestOf('theirs') }
  try {
    for (let i = 0; i < measuredRounds; i++) {
      for (const name of i % 2 === 0 ? names : [...names].reverse()) {
        const rate = await rateOf(best[name].child)
        say(`consume with inbox ${i + 1}/${measuredRounds} ${name}: ${Math.round(rate)}/s`)
        rates[name].push(rate)
      }
    }
  } finally {
    await Promise.all(names.map((name) => best[name].child.end()))
  }

  /** The fastest of a round each, once it is warm; it stays. */
  async function bestOf(name: 'ours' | 'theirs') {
    let best: { child: Child; concurrency: number; rate: number } | undefined
    for (const concurrency of CONCURRENCIES[name]) {
      const child = start[name](concurrency)
      await child.next()
      for (let i = 0; i < WARM_UP; i++) await rateOf(child)
      const rate = await rateOf(child)
      say(`consume with inbox, ${name}, concurrency ${concurrency}: ${Math.round(rate)}/s`)
      if (best !== undefined && best.rate >= rate) await child.end()
      else {
        await best?.child.end()
        best = { child, concurrency, rate }
      }
    }
    return best!
  }

  const how = {
    against: 'BullMQ',
    ours: `transactional(db): inbox, unit of work, then ack; concurrency ${best.ours.concurrency}, the best of ${CONCURRENCIES.ours}`,
    theirs: `one worker, concurrency ${best.theirs.concurrency}, the best of ${CONCURRENCIES.theirs}, removeOnComplete, addBulk beforehand`,
  }
  const versions = { bullmq: bullmq!, 'contestants on node': node.version }
  return { ...measured('consume with inbox', count, rates, how), versions }
}
