import { Redis } from 'ioredis'
import { expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { lua } from '../../../src/brokers/redis-streams/lua.generated.ts'
import { systemClock } from '../../../src/core/index.ts'
import { lua as drivers } from '../../../src/drivers/redis/lua.generated.ts'
import { DONE } from '../../../src/flow/index.ts'
import { brokerSuite } from '../../../src/testing/index.ts'
import { calledIn, problemOf } from '../../support/redis-6.ts'
import { standalone } from '../../support/redis-topologies.ts'
import { describeWith } from '../../support/services.ts'
import { factory, fresh, ioredis, message, NEVER, receive } from './support.ts'

/** What drivers say by themselves when they connect; they bear it when the server does not know it. */
const HANDSHAKE = /^(client (setinfo|setname)|hello|select|auth|info$)/i

test('the scripts call nothing that came after 6.0', () => {
  for (const [name, text] of Object.entries({ ...lua, ...drivers })) {
    const calls = calledIn(text)
    expect(calls.length).toBeGreaterThan(0)
    for (const words of calls) {
      expect(words, `${name}.lua: which command?`).not.toEqual([])
      expect(problemOf(words), `${name}.lua`).toBeUndefined()
    }
  }
  expect(problemOf(['XPENDING', 's', 'g', 'IDLE', '5', '-', '+', '1'])).toMatch(/6\.0/)
  expect(problemOf(['XADD', 's', 'NOMKSTREAM', '*', 'a', 'b'])).toMatch(/NOMKSTREAM/)
  expect(problemOf(['XAUTOCLAIM', 's'])).toMatch(/not in the table/)
  expect(problemOf(['XRANGE', 's', '(1-1', '+'])).toMatch(/came after/)
})

describeWith(['redis'], 'redis streams, as the server hears them', () => {
  test('no command, subcommand or argument that came after 6.0 is sent', { timeout: 120_000 }, async () => {
    const server = await standalone()
    const monitor = await new Redis(server.url).monitor()
    const heard: string[][] = []
    monitor.on('monitor', (_time: string, args: string[]) => heard.push(args))
    for (const { skip, run } of brokerSuite(factory('monitored', () => ioredis(server.url)))) {
      if (skip === undefined) await run()
    }
    const stream = fresh()
    const broker = redisStreams({ client: ioredis(server.url), durability: { replicas: 1, within: 1 } })
    const publisher = broker.publisher({ stream, maxLen: 100 })
    await publisher.publish([message()], NEVER)
    const source = broker.source({ stream, group: 'g', consumer: 'c', remove: true, block: 20, reclaim: { every: 0 } })
    const session = await source.open()
    const taken = await receive(session, 1)
    await session.extend(taken)
    await session.settle(taken.map((delivery) => [delivery, { kind: 'dead', reason: 'r', error: undefined }]))
    const [letter] = await source.deadLetters()
    await source.rearm(letter!.id)
    const again = await receive(session, 1)
    await session.settle(again.map((delivery) => [delivery, DONE]))
    await source.stats()
    await broker.trimmer({ stream }).runOnce()
    await source.discard('1-1')
    await session.close()
    await systemClock.sleep(100)
    monitor.disconnect()
    const ours = heard.filter((args) => !HANDSHAKE.test(args.join(' ')))
    expect(ours.length).toBeGreaterThan(1000)
    expect([...new Set(ours.map(problemOf).filter((problem) => problem !== undefined))]).toEqual([])
    const used = new Set(ours.map(([name]) => name!.toLowerCase()))
    for (const name of ['xadd', 'xreadgroup', 'xclaim', 'xpending', 'xack', 'xdel', 'xinfo', 'wait', 'evalsha']) {
      expect(used, 'scripts are heard too').toContain(name)
    }
    await publisher.close!()
    await broker.close()
  })
})
