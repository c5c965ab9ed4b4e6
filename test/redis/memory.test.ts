import { expect, test } from 'vitest'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { OK } from '../../src/flow/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { Router } from '../../src/router/index.ts'
import { transactional } from '../../src/store/index.ts'
import { admin, datasetOf, standalone } from '../support/redis-topologies.ts'
import { scale } from '../support/scale.ts'
import { describeWith } from '../support/services.ts'
import { Invoiced, order, Placed } from './faults/service.ts'
import { ioredis, storeOf, until } from './support.ts'

const ROUNDS = scale({ test: 6, full: 40, torture: 1000 })
const EACH = scale({ test: 300, full: 2000, torture: 10_000 })
const NEVER = new AbortController().signal

describeWith(['redis'], 'a long run', () => {
  test('leaves Redis as large as it was: marks run out, what is forwarded is gone, what is handled is trimmed', {
    timeout: scale({ test: 120_000, full: 600_000, torture: 86_400_000 }),
  }, async () => {
    const node = await standalone()
    const look = admin(node)
    const db = storeOf(ioredis(node.url), { inbox: { retention: 500 } })
    const streams = redisStreams({ client: ioredis(node.url) })
    const stream = db.key('orders')
    const router = new Router('billing').use(transactional(db)).on(Placed, async ({ data }, { tx }) => {
      tx.incrby(db.key('total'), data.n)
      return [Invoiced({ n: data.n }), Invoiced({ n: data.n })]
    })
    const source = streams.source({ stream, group: 'billing', block: 20, batch: 200 })
    const consumer = await router.consume(source, { concurrency: 50 }).start()
    const to = {
      name: 'nowhere',
      features: { ordered: true },
      publish: async (messages: readonly unknown[]) => messages.map(() => OK),
    }
    const forwarder = await new Relay({ from: streams.source({ ...db.outbox.forwarding, block: 20 }), to }).start()
    const trimmer = streams.trimmer({ stream })
    const publisher = streams.publisher({ stream })
    const sizes: number[] = []
    for (let round = 0; round < ROUNDS; round++) {
      const orders = Array.from({ length: EACH }, (_, i) => order(round * EACH + i + 1))
      for (let i = 0; i < EACH; i += 500) await publisher.publish(orders.slice(i, i + 500), NEVER)
      const sum = ((round + 1) * EACH * ((round + 1) * EACH + 1)) / 2
      await until('all are handled', async () => (await look.get(db.key('total'))) === String(sum), 60_000)
      await until('all are forwarded', async () => (await look.xlen(db.outbox.stream)) === 0)
      await until('all are trimmed', async () => {
        await trimmer.runOnce()
        return (await look.xlen(stream)) === 0
      })
      // The two streams, the total, and a set that a group may keep.
      await until('the marks have run out', async () => (await look.dbsize()) <= 4, 60_000)
      const info = await look.info('memory')
      sizes.push(datasetOf(info))
    }
    for (const worker of [consumer, forwarder]) await worker.stop()
    await publisher.close!()
    await streams.close()
    // Buffers of clients come and go; a message that stayed would be at least 100 bytes.
    const grown = sizes.at(-1)! - sizes[0]!
    expect(grown).toBeLessThan(Math.max(200_000, (ROUNDS - 1) * EACH * 20))
  })
})
