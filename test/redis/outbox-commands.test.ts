import { Redis } from 'ioredis'
import { expect, test } from 'vitest'
import { systemClock } from '../../src/core/index.ts'
import { DONE } from '../../src/flow/index.ts'
import { redisDue, redisOutbox } from '../../src/redis/index.ts'
import { outboxAdminSuite, outboxReaderSuite, outboxStoreSuite } from '../../src/testing/index.ts'
import { sample, samples } from '../../src/testing/outbox-probe.ts'
import { problemOf } from '../support/redis-6.ts'
import { standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { outboxOn } from './outbox-support.ts'
import { ioredis, storeOf } from './support.ts'

/** Handshakes of drivers, and what a unit of work may queue besides. */
const OTHERS = /^(client (setinfo|setname)|hello|select|auth|info|command)/i

describeWith(['redis'], 'the outbox, as the server hears it', () => {
  test('no command or argument that came after 6.0 is sent', { timeout: 180_000 }, async () => {
    const server = await standalone()
    const monitor = await new Redis(server.url).monitor()
    const heard: string[][] = []
    monitor.on('monitor', (_time: string, args: string[]) => heard.push(args))
    const create = async () => {
      const db = storeOf(ioredis(server.url))
      return { work: db, outbox: redisOutbox({ on: [db] }), reader: 'auto' as const, close: () => db.stop() }
    }
    const suites = [
      ...outboxStoreSuite({ name: 'monitored', create }),
      ...outboxReaderSuite({ name: 'monitored', features: { order: true }, create }),
      ...outboxAdminSuite({ name: 'monitored', create }),
    ]
    const slow = /retry after its delay|scheduled event when|megabyte|thousand/
    for (const { name, skip, run } of suites) if (skip === undefined && !slow.test(name)) await run()

    const { db, outbox } = outboxOn(ioredis(server.url))
    const due = redisDue({ outbox, revokedBy: () => db.key('revoked') })
    await outbox.enqueueAlone([...samples(3, { key: 'a' }), ...samples(2)])
    const signal = new AbortController().signal
    const options = { shards: 1, lease: 60_000, deletes: true, wake: true, attempts: 25, clock: systemClock } as const
    const [source] = await outbox.reader({ reader: 'auto', deadKey: 'continue', ...options }).assignment()
    const session = await source!.open(signal)
    const taken = await session!.take({ count: 10, bytes: 1e6 }, signal)
    await session!.extend!(taken)
    await session!.settle(taken.map((delivery) => [delivery, DONE]))
    await session!.close()
    await outbox.repair({ patience: 0 }).runOnce()
    await outbox.check()
    const at = new Date(0)
    for (const id of ['a', 'b', 'c']) await due.record({ id, at })
    await due.reschedule({ id: 'a', at: new Date(1) })
    await due.cancel('b')
    await due.revoke('c')
    await due.worker({ event: ({ id }) => sample(1, { key: id }) }).runOnce()
    await due.clean()
    monitor.disconnect()
    const sent = heard.filter((args) => !OTHERS.test(args.join(' ')))
    expect(sent.length).toBeGreaterThan(1000)
    expect([...new Set(sent.map(problemOf).filter((problem) => problem !== undefined))]).toEqual([])
    const used = new Set(sent.map(([name]) => name!.toLowerCase()))
    for (const name of ['evalsha', 'zadd', 'hmget', 'zrangebylex', 'hscan', 'zscan']) expect(used).toContain(name)
  })
})
