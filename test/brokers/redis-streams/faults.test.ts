import { expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { DONE, Flow } from '../../../src/flow/index.ts'
import { faultProxy, runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { type RedisVersion, rewritten, standalone } from '../../support/redis-topologies.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, service } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { underLoad } from './load.ts'
import { fresh, ioredis, message, NEVER, receive } from './support.ts'

async function until(what: string, condition: () => Promise<boolean>, limit = 60_000): Promise<void> {
  await eventually(what, condition, { limit })
}

for (const version of ['redis', 'redis6'] as RedisVersion[]) {
  describeWith([version], `redis streams under faults on ${version}`, () => {
    const url = () => service(version).url
    const script = (args: string[]) =>
      runScript({ script: bundled(new URL('./consumer-script.ts', import.meta.url)), args })

    test('a consumer is killed with entries pending, and another gets them, charged', async () => {
      const [stream, counts] = [fresh(), fresh('counts')]
      const broker = redisStreams({ client: ioredis(url()) })
      const victim = script([url(), stream, 'g', counts, '60000'])
      await victim.line('ready')
      const publisher = broker.publisher({ stream })
      const sent = [message(), message(), message()]
      await publisher.publish(sent, NEVER)
      const source = broker.source({ stream, group: 'g', block: 50, reclaim: { every: 50, idle: 600 } })
      await until('the victim has them', async () => (await source.stats())[0]!.unsettled === 3)
      victim.kill()
      await victim.finished
      const session = await source.open()
      const got: { id: string; attempts: number }[] = []
      await until('they come', async () => {
        const taken = await session.take({ count: 10, bytes: 1e6 }, NEVER)
        got.push(...taken.map(({ message: { id }, attempts }) => ({ id, attempts })))
        await session.settle(taken.map((delivery) => [delivery, DONE]))
        return got.length >= 3
      })
      expect(got.sort((a, b) => (a.id < b.id ? -1 : 1))).toEqual(
        sent.map(({ id }) => ({ id, attempts: 1 })).sort((a, b) => (a.id < b.id ? -1 : 1)),
      )
      expect((await source.stats())[0]).toMatchObject({ unsettled: 0, waiting: 0, lag: 0 })
      await session.close()
      await publisher.close!()
      await broker.close()
    })

    test('a process with a stable name finds what it left when it was killed, without waiting for idleness', async () => {
      const [stream, counts] = [fresh(), fresh('counts')]
      const broker = redisStreams({ client: ioredis(url()) })
      const publisher = broker.publisher({ stream })
      const victim = script([url(), stream, 'g', counts, '60000', 'worker-1'])
      await victim.line('ready')
      await publisher.publish([message()], NEVER)
      const source = broker.source({ stream, group: 'g', consumer: 'worker-1', reclaim: { idle: '10m' } })
      await until('the victim has it', async () => (await source.stats())[0]!.unsettled === 1)
      victim.kill()
      await victim.finished
      const session = await source.open()
      const [delivery] = await receive(session, 1)
      expect(delivery?.attempts).toBe(1)
      await session.settle([[delivery!, DONE]])
      await session.close()
      await publisher.close!()
      await broker.close()
    })

    test('a handler that takes longer than the idle threshold is not run twice', async () => {
      const stream = fresh()
      const client = ioredis(url())
      const brokers = [redisStreams({ client }), redisStreams({ client })]
      const publisher = brokers[0]!.publisher({ stream })
      await publisher.publish([message()], NEVER)
      let runs = 0
      const flows = brokers.map((broker) => {
        const from = broker.source({ stream, group: 'g', block: 20, reclaim: { every: 20, idle: 2500 } })
        const each = async () => {
          runs++
          await systemClock.sleep(6000)
        }
        return new Flow({ name: 'slow', from, step: { each } })
      })
      for (const flow of flows) await flow.start()
      const source = brokers[0]!.source({ stream, group: 'g' })
      await until('it is done', async () => {
        const [stats] = await source.stats()
        return runs > 0 && stats!.unsettled + stats!.waiting + stats!.lag === 0
      })
      for (const flow of flows) await flow.stop()
      expect(runs).toBe(1)
      await publisher.close!()
      for (const broker of brokers) await broker.close()
    })

    test('two subscribers with equal configuration share no consumer name', async () => {
      const stream = fresh()
      const client = ioredis(url())
      const sources = [1, 2].map(() =>
        redisStreams({ client }).source({ stream, group: 'g', consumer: 'same', block: 20 }),
      )
      const sessions = await Promise.all(sources.map((source) => source.open()))
      const publisher = redisStreams({ client }).publisher({ stream })
      for (const session of sessions) {
        await publisher.publish([message()], NEVER)
        await receive(session, 1)
      }
      await publisher.close!()
      const admin = ioredis(url())
      const names = ((await admin.xinfo('CONSUMERS', stream, 'g')) as string[][]).map((consumer) => consumer[1]!)
      expect(new Set(names).size).toBe(2)
      for (const name of names) expect(name).toMatch(/^same:[0-9a-f]{12}$/)
      for (const session of sessions) await session.close()
      const left = ((await admin.xinfo('CONSUMERS', stream, 'g')) as string[][]).map((consumer) => consumer[1]!)
      expect(left, 'whoever leaves is no member any more').toEqual(['waybill:returned'])
      admin.disconnect()
    })

    test('the delay of a retry outlives its session, and so does what it cost', async () => {
      const stream = fresh()
      const broker = redisStreams({ client: ioredis(url()) })
      const publisher = broker.publisher({ stream })
      const source = broker.source({ stream, group: 'g', block: 20, reclaim: { every: 0, idle: 1 } })
      await publisher.publish([message()], NEVER)
      const first = await source.open()
      const [delivery] = await receive(first, 1)
      const began = performance.now()
      await first.settle([[delivery!, { kind: 'retry', after: 1500, charged: true, error: undefined }]])
      await first.close()
      const second = await source.open()
      const [again] = await receive(second, 1)
      expect(performance.now() - began).toBeGreaterThanOrEqual(1490)
      expect(again!.attempts).toBe(1)
      await second.close()
      await publisher.close!()
    })

    test('a zombie settles nothing that others took over', async () => {
      const stream = fresh()
      const broker = redisStreams({ client: ioredis(url()) })
      const publisher = broker.publisher({ stream })
      await publisher.publish([message(), message()], NEVER)
      const options = { stream, group: 'g', block: 20 }
      const zombie = await broker.source({ ...options, reclaim: { idle: '10m' } }).open()
      const held = await receive(zombie, 2)
      const heir = await broker.source({ ...options, reclaim: { every: 0, idle: 1 } }).open()
      const taken: unknown[] = []
      await until('taken over', async () => {
        taken.push(...(await heir.take({ count: 1, bytes: 1e6 }, NEVER)))
        return taken.length > 0
      })
      // One of the two was taken; of the other it is still the owner.
      await zombie.extend(held)
      expect(await zombie.settle(held.map((delivery) => [delivery, DONE]))).toBe(1)
      expect((await broker.source(options).stats())[0]!.unsettled).toBe(1)
      await zombie.close()
      await heir.close()
      await publisher.close!()
      await broker.close()
    })

    test('the connection is cut between command and reply: down, published again, duplicates only', async () => {
      const stream = fresh()
      const { hostname, port } = new URL(url())
      await using proxy = await faultProxy({ host: hostname, port: Number(port) })
      const broker = redisStreams({ client: ioredis(proxy.url(url())) })
      const publisher = broker.publisher({ stream })
      const first = message()
      expect((await publisher.publish([first], NEVER))[0]!.kind).toBe('ok')
      const cut = proxy.cutAfter(1, 'downstream')
      const batch = [message(), message(), message()]
      const outcomes = await publisher.publish(batch, NEVER)
      expect(outcomes.map(({ kind }) => kind)).toEqual(['down', 'down', 'down'])
      expect(await cut).toBe(true)
      expect((await publisher.publish(batch, NEVER)).map(({ kind }) => kind)).toEqual(['ok', 'ok', 'ok'])
      const admin = ioredis(url())
      const entries = await admin.xrange(stream, '-', '+')
      const ids = entries.map(([, [, text]]) => JSON.parse(text!).id as string)
      // It had arrived, and nobody but the publisher's caller sent it again.
      expect(ids).toEqual([first, ...batch, ...batch].map(({ id }) => id))
      admin.disconnect()
      await publisher.close!()
    })

    test('a cut connection loses the session, and the next one takes over at once and charges nobody', async () => {
      const stream = fresh()
      const { hostname, port } = new URL(url())
      await using proxy = await faultProxy({ host: hostname, port: Number(port) })
      const broker = redisStreams({ client: ioredis(proxy.url(url())) })
      const source = broker.source({ stream, group: 'g', block: 100 })
      const publisher = broker.publisher({ stream })
      await publisher.publish([message(), message()], NEVER)
      const first = await source.open()
      const held = await receive(first, 2)
      proxy.cut()
      await until('it is lost', async () => first.lost.aborted)
      await first.close()
      expect(await first.settle(held.map((delivery) => [delivery, DONE]))).toBe(2)
      const second = await source.open()
      const again = await receive(second, 2)
      expect(again.map(({ message: { id }, attempts }) => [id, attempts])).toEqual(
        held.map(({ message: { id } }) => [id, 0]),
      )
      expect(await second.settle(again.map((delivery) => [delivery, DONE]))).toBe(0)
      await second.close()
      await publisher.close!()
      await broker.close()
    })

    test('a silent server: publish is down in time, and the session is lost', async () => {
      const stream = fresh()
      const { hostname, port } = new URL(url())
      await using proxy = await faultProxy({ host: hostname, port: Number(port) })
      const broker = redisStreams({ client: ioredis(proxy.url(url())), timeout: 1500 })
      const publisher = broker.publisher({ stream })
      const session = await broker.source({ stream, group: 'g', block: 50 }).open()
      await publisher.publish([message()], NEVER)
      proxy.blackHole()
      expect((await publisher.publish([message()], NEVER))[0]!.kind).toBe('down')
      await session.take({ count: 1, bytes: 1 }, NEVER).catch(() => {})
      await until('it is lost', async () => session.lost.aborted)
      await session.close()
      await proxy.restore()
      await publisher.close!()
    })

    test('kills of the consumer process while messages flow: nothing is lost', async () => {
      const size = scale({ test: 1000, full: 10_000, torture: 100_000 })
      const kills = scale({ test: 2, full: 12, torture: 60 })
      const [stream, counts] = [fresh(), fresh('counts')]
      const broker = redisStreams({ client: ioredis(url()) })
      const publisher = broker.publisher({ stream })
      const admin = ioredis(url())
      const sent = Array.from({ length: size }, () => message())
      for (let from = 0; from < size; from += 500) await publisher.publish(sent.slice(from, from + 500), NEVER)
      for (let kill = 0; kill < kills; kill++) {
        const victim = script([url(), stream, 'g', counts, '2'])
        await victim.line('ready')
        const goal = Math.floor(((kill + 1) * size) / (kills + 2))
        await until('some progress', async () => (await admin.hlen(counts)) >= goal, 60_000)
        victim.kill()
        await victim.finished
      }
      const last = script([url(), stream, 'g', counts, '0'])
      await until('all are handled', async () => (await admin.hlen(counts)) === size, 60_000)
      const source = broker.source({ stream, group: 'g' })
      await until('nothing is pending', async () => (await source.stats())[0]!.unsettled === 0)
      last.kill()
      await last.finished
      const handled = await admin.hgetall(counts)
      expect(sent.filter(({ id }) => handled[id] === undefined)).toEqual([])
      // At most what each killed process had not settled came twice.
      const twice = Object.values(handled).filter((count) => Number(count) > 1).length
      expect(twice).toBeLessThanOrEqual(kills * 40)
      expect((await source.stats())[0]).toMatchObject({ dead: 0, waiting: 0 })
      admin.disconnect()
      await publisher.close!()
      await broker.close()
    })

    test('a consumer that is suspended past the idle threshold: others take over, and it works again afterwards', async () => {
      const [stream, counts] = [fresh(), fresh('counts')]
      const broker = redisStreams({ client: ioredis(url()) })
      const publisher = broker.publisher({ stream })
      const admin = ioredis(url())
      const victim = script([url(), stream, 'g', counts, '1500'])
      await victim.line('ready')
      const sent = Array.from({ length: 5 }, () => message())
      await publisher.publish(sent, NEVER)
      const source = broker.source({ stream, group: 'g', block: 50, reclaim: { every: 50, idle: 600 } })
      await until('it has them', async () => (await source.stats())[0]!.unsettled > 0)
      victim.pause()
      const heirs: string[] = []
      const each = ({ message: { id } }: { message: { id: string } }) => void heirs.push(id)
      const heir = new Flow({ name: 'heir', from: source, step: { each } })
      await heir.start()
      const settled = async () => {
        const [stats] = await source.stats()
        return stats!.unsettled + stats!.waiting + stats!.lag === 0
      }
      await until('the heir has done all of it', async () => heirs.length >= sent.length && (await settled()))
      await heir.stop()
      victim.resume()
      const later = message()
      await publisher.publish([later], NEVER)
      await until('the suspended one works again', async () => (await admin.hexists(counts, later.id)) === 1)
      await until('all is settled', settled)
      expect(new Set(heirs)).toEqual(new Set(sent.map(({ id }) => id)))
      expect((await source.stats())[0]).toMatchObject({ dead: 0, lag: 0 })
      victim.kill()
      await victim.finished
      admin.disconnect()
      await publisher.close!()
      await broker.close()
    })
  })
}

for (const version of ['redis', 'redis6'] as RedisVersion[]) {
  describeWith([version], `redis streams while ${version} restarts`, () => {
    test('killed and started again with AOF under load: nothing acknowledged is lost', async () => {
      // `always`: what was answered is on disk, so that the promise can be checked to the letter.
      const server = await standalone({ appendfsync: 'always' }, version)
      const load = await underLoad({ client: ioredis(server.url) })
      for (let restart = 1; restart <= scale({ test: 2, full: 6, torture: 30 }); restart++) {
        await load.flows()
        await server.restart('kill')
        await rewritten(server)
      }
      await load.flows()
      expect(await load.end()).toEqual([])
      expect([...load.errors].filter((error) => !error.startsWith('down:'))).toEqual([])
      expect(load.telemetry.of('message.dead')).toEqual([])
    })
  })
}
