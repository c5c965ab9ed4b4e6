import type { Redis } from 'ioredis'
import { WARM_UP } from '../measure.ts'
import { Child, contestantNode } from '../pg-child.ts'
import { say } from '../pg-contest.ts'
import type { Drained } from '../pg-drain.ts'
import { installPeers, peerFile } from '../pg-peers.ts'
import { type Measured, measured } from './contest.ts'

type Name = 'consume' | 'relay' | 'bullmq'

/** How many each may have under way, or takes at a time: it gets the best of these. */
const AT_ONCE: Readonly<Record<Name, readonly number[]>> = {
  consume: [128, 256, 500, 1000],
  relay: [500, 1000],
  bullmq: [50, 100, 200, 500],
}
const NAMES = Object.keys(AT_ONCE) as Name[]

/**
 * Consuming with an inbox and a unit of work, and relaying from the script outbox, against BullMQ: all of them know of each
 * message whether its work was done, how often it was tried, and who has it now.
 */
export async function againstBullmq(
  client: Redis,
  url: string,
  { count, rounds: measuredRounds }: { count: number; rounds: number },
): Promise<{ consume: Measured; relay: Measured; versions: Record<string, string> }> {
  const { bullmq } = await installPeers(say)
  const node = await contestantNode('brokers', say)
  const files: Record<Name, URL> = {
    consume: new URL('./inbox-child.ts', import.meta.url),
    relay: new URL('./relay-child.ts', import.meta.url),
    bullmq: peerFile('bullmq'),
  }
  let rounds = 0
  const rateOf = async (child: Child) => {
    await client.flushall()
    child.send(JSON.stringify({ name: `r${rounds++}`, events: count }))
    return (count / (await child.next<Drained>()).ms) * 1000
  }

  /** The fastest of a round each, once it is warm; it stays. */
  const bestOf = async (name: Name) => {
    let best: { child: Child; concurrency: number; rate: number } | undefined
    for (const concurrency of AT_ONCE[name]) {
      const child = new Child(node.path, files[name], { url, concurrency })
      await child.next()
      for (let i = 0; i < WARM_UP; i++) await rateOf(child)
      const rate = await rateOf(child)
      say(`${name}, ${concurrency} at once: ${Math.round(rate)}/s`)
      if (best !== undefined && best.rate >= rate) await child.end()
      else {
        await best?.child.end()
        best = { child, concurrency, rate }
      }
    }
    return best!
  }

  const rates: Record<Name, number[]> = { consume: [], relay: [], bullmq: [] }
  const best = { consume: await bestOf('consume'), relay: await bestOf('relay'), bullmq: await bestOf('bullmq') }
  try {
    for (let i = 0; i < measuredRounds; i++) {
      for (let j = 0; j < NAMES.length; j++) {
        const name = NAMES[(i + j) % NAMES.length]!
        const rate = await rateOf(best[name].child)
        say(`against BullMQ ${i + 1}/${measuredRounds} ${name}: ${Math.round(rate)}/s`)
        rates[name].push(rate)
      }
    }
  } finally {
    await Promise.all(NAMES.map((name) => best[name].child.end()))
  }

  const tuned = (name: Name) => `${best[name].concurrency}, the best of ${AT_ONCE[name]}`
  const against = (name: Name, what: string, how: string) =>
    measured(
      what,
      count,
      { ours: rates[name], theirs: rates.bullmq },
      {
        against: 'BullMQ',
        ours: how,
        theirs: `one worker, concurrency ${tuned('bullmq')}, removeOnComplete, addBulk beforehand`,
      },
    )
  return {
    consume: against(
      'consume',
      'consume with inbox',
      `transactional(db): inbox, unit of work, then ack; concurrency ${tuned('consume')}`,
    ),
    relay: against('relay', 'script outbox: relay', `Relay, order by key, removes; batches of ${tuned('relay')}`),
    versions: { bullmq: bullmq!, 'contestants on node': node.version },
  }
}
