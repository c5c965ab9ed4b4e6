import { expect, test } from 'vitest'
import { classify } from '../../../src/core/index.ts'
import { faultProxy, recordTelemetry } from '../../../src/testing/index.ts'
import { admin, rewritten, standalone } from '../../support/redis-topologies.ts'
import { describeWith, service } from '../../support/services.ts'
import { freshTag, ioredis, reader, storeOf, until } from '../support.ts'
import { serviceOn } from './service.ts'
import { child, place, verify } from './support.ts'

const KEY = { subscriber: 's', source: '/s', id: '1' }

describeWith(['redis'], 'a service that is paused, cut off, or whose Redis is', () => {
  const url = () => service('redis').url

  test('paused past its leases: another does the work, and the late commit changes nothing and is counted', {
    timeout: 120_000,
  }, async () => {
    const tag = freshTag('zombie')
    const zombie = child(url(), { tag, takes: 1500, lease: 600, idle: 600 })
    await zombie.line('ready')
    await place(url(), tag, 1, 3)
    await zombie.line('handling o3')
    zombie.pause()
    const survivor = serviceOn(url(), { tag, lease: 600, idle: 600 })
    await survivor.start()
    await verify(url(), tag, 3)
    zombie.resume()
    await zombie.line('fenced', 30_000)
    await place(url(), tag, 4, 5)
    await verify(url(), tag, 5)
    zombie.kill('SIGTERM')
    await zombie.finished
    await survivor.stop()
    await verify(url(), tag, 5)
  })

  test('the connection is cut between a commit and its answer: it is unknown, and a second try finds out', async () => {
    const { hostname, port } = new URL(url())
    const proxy = await faultProxy({ host: hostname, port: Number(port) })
    for (const [direction, happened] of [
      ['downstream', true],
      ['upstream', false],
    ] as const) {
      const db = storeOf(ioredis(proxy.url(url())), { inbox: { lease: '5m' } })
      const handle = (spoil?: () => void) =>
        db.withTransaction(async (tx) => {
          const answer = await db.inbox.receive(tx, KEY)
          if (answer === 'new') tx.incr(db.key('count'))
          spoil?.()
          return answer
        })
      // Scripts are known by now, so that the commit is one command.
      await db.withTransaction(async (tx) => tx.incrby(db.key('count'), 0))
      const error = await handle(() => void proxy.cutAfter(1, direction)).catch((caught) => caught)
      expect(error).toMatchObject({ code: 'COMMIT_UNKNOWN' })
      expect(classify(error)).toBe('down')
      // The mark was given up where nothing happened, so nobody waits for five minutes.
      expect(await handle()).toBe(happened ? 'done' : 'new')
      expect(await reader(url()).get(db.key('count'))).toBe('1')
    }
    await proxy.close()
  })

  test('a server that does not answer for a while: late answers change nothing, and all is handled once', {
    timeout: 120_000,
  }, async () => {
    const { hostname, port } = new URL(url())
    const proxy = await faultProxy({ host: hostname, port: Number(port) })
    const tag = freshTag('hole')
    const recorder = recordTelemetry(['message.dead'])
    const through = serviceOn(proxy.url(url()), { tag, timeout: 400, lease: 600, idle: 600 })
    await through.start()
    await place(url(), tag, 1, 50)
    for (let round = 0; round < 3; round++) {
      const done = await reader(url()).hlen(`{${tag}}:times`)
      proxy.blackHole()
      await place(url(), tag, 51 + round * 50, 100 + round * 50)
      await new Promise((resolve) => setTimeout(resolve, 900))
      await proxy.restore()
      await until('it goes on', async () => (await reader(url()).hlen(`{${tag}}:times`)) > done)
    }
    await verify(url(), tag, 200)
    await through.stop()
    await proxy.close()
    expect(recorder.of('message.dead')).toEqual([])
    recorder.stop()
  })

  test('Redis is killed and started again with its append-only file: it goes on where it was', {
    timeout: 120_000,
  }, async () => {
    const node = await standalone({ appendonly: 'yes', appendfsync: 'always' })
    const tag = freshTag('aof')
    const running = serviceOn(node.url, { tag, lease: 600, idle: 600 })
    await running.start()
    await place(node.url, tag, 1, 200, 3)
    for (let round = 0; round < 3; round++) {
      const done = await admin(node).hlen(`{${tag}}:times`)
      await place(node.url, tag, 201 + round * 200, 400 + round * 200)
      await until('some are handled', async () => (await admin(node).hlen(`{${tag}}:times`)) > done)
      await node.restart('kill')
      await rewritten(node)
    }
    await verify(node.url, tag, 800)
    await running.stop()
  })
})
