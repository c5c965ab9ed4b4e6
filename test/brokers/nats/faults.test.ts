import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { systemClock } from '../../../src/core/index.ts'
import { DONE, Flow, RELEASE } from '../../../src/flow/index.ts'
import { faultProxy, recordTelemetry, runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, service } from '../../support/services.ts'
import { control, privateNats } from './private.ts'
import { broker, connecting, fresh, message, NEVER, receive, until } from './support.ts'

const retry = (after: number, charged: boolean) => ({ kind: 'retry', after, charged, error: undefined }) as const

describeWith(['nats'], 'nats under faults', () => {
  let folder: string
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'waybill-nats-'))
  })
  afterAll(async () => await rm(folder, { recursive: true }))

  const url = () => service('nats').url
  const script = (args: string[]) =>
    runScript({ script: bundled(new URL('./consumer-script.ts', import.meta.url)), args })
  const handled = async (file: string) => (await readFile(file, 'utf8').catch(() => '')).split('\n').filter(Boolean)
  const proxied = async () => {
    const { hostname, port } = new URL(url())
    return await faultProxy({ host: hostname, port: Number(port) })
  }

  test('a consumer is killed with unacknowledged messages, and another gets them, charged', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const sent = [message(), message(), message()]
    await publisher.publish(sent, NEVER)
    const victim = script([url(), mine.stream, 'g', join(folder, fresh()), '60000', '3000'])
    const source = mine.source({ group: 'g', create: true, ackWait: 3000 })
    await until('the victim has them', async () => (await source.stats()).pending === 3)
    victim.kill()
    await victim.finished
    const session = await source.open()
    const got = await receive(session, 3)
    expect(got.map(({ message: { id }, attempts }) => [id, attempts]).sort()).toEqual(
      sent.map(({ id }) => [id, 1]).sort(),
    )
    await session.settle(got.map((delivery) => [delivery, DONE]))
    expect(await source.stats()).toMatchObject({ pending: 0, lag: 0, dead: 0 })
    await session.close()
    await publisher.close()
    await mine.close()
  })

  test('what is released costs no attempt, in whichever process, and a charged retry does', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.publish([message()], NEVER)
    // Each its own source: nothing is remembered here, all of it there.
    const open = () => mine.source({ group: 'g', create: true }).open()
    const seen: number[] = []
    const settlements = [RELEASE, retry(0, true), RELEASE, undefined, retry(0, false), retry(0, true), RELEASE]
    for (const settlement of settlements) {
      const session = await open()
      const [delivery] = await receive(session, 1)
      seen.push(delivery!.attempts)
      if (settlement !== undefined) await session.settle([[delivery!, settlement]])
      await session.close()
    }
    const last = await open()
    const [delivery] = await receive(last, 1)
    expect([...seen, delivery!.attempts]).toEqual([0, 0, 1, 1, 1, 1, 2, 2])
    await last.settle([[delivery!, DONE]])
    await last.close()
    const admin = await connecting(url())()
    const { jetstreamManager } = await import('@nats-io/jetstream')
    const info = await (await jetstreamManager(admin)).streams.info(`${mine.stream}-dead`)
    expect(info.state.messages, 'its notes are gone with it').toBe(0)
    await admin.close()
    await publisher.close()
    await mine.close()
  })

  test('a handler that takes longer than the consumer waits is not run twice', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.publish([message()], NEVER)
    let runs = 0
    // Many, so that what is given to another after all is not given to the same one by chance.
    const flows = [1, 2, 3, 4, 5].map(() => {
      const from = mine.source({ group: 'g', create: true, ackWait: 2500, block: 100 })
      const each = async () => {
        runs++
        await systemClock.sleep(6000)
      }
      return new Flow({ name: 'slow', from, step: { each } })
    })
    for (const flow of flows) await flow.start()
    const source = mine.source({ group: 'g' })
    await until('it is done', async () => {
      const { pending, lag } = await source.stats()
      return runs > 0 && pending + lag === 0
    })
    for (const flow of flows) await flow.stop()
    expect(runs).toBe(1)
    await publisher.close()
    await mine.close()
  })

  test('a session past its time falls silent: it settles nothing that others took over', async () => {
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.publish([message()], NEVER)
    const source = mine.source({ group: 'g', create: true, ackWait: 2000, block: 50 })
    const zombie = await source.open()
    const held = await receive(zombie, 1)
    const heir = await source.open()
    const [taken] = await receive(heir, 1)
    expect(zombie.live()).toBe(false)
    expect(zombie.lost.aborted).toBe(true)
    expect(await zombie.settle(held.map((delivery) => [delivery, DONE]))).toBe(1)
    await zombie.close()
    expect(taken!.attempts).toBe(1)
    expect((await source.stats()).pending).toBe(1)
    await heir.settle([[taken!, DONE]])
    expect((await source.stats()).pending).toBe(0)
    await heir.close()
    await publisher.close()
    await mine.close()
  })

  test('the connection is cut between publish and answer: down, published again, and in the stream once', async () => {
    await using proxy = await proxied()
    const mine = broker(connecting(proxy.url(url()), { ignoreClusterUpdates: true }))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const first = message()
    expect((await publisher.publish([first], NEVER))[0]!.kind).toBe('ok')
    const cut = proxy.cutAfter(1, 'downstream')
    const batch = [message(), message(), message()]
    const began = performance.now()
    const outcomes = await publisher.publish(batch, NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['down', 'down', 'down'])
    expect(performance.now() - began, 'it does not wait for the time limit').toBeLessThan(8000)
    expect(await cut).toBe(true)
    await until('it is published', async () => {
      const again = await publisher.publish(batch, NEVER).catch(() => [])
      return again.length === 3 && again.every(({ kind }) => kind === 'ok')
    })
    const direct = broker(connecting(url()), { stream: mine.stream })
    const session = await direct.source({ group: 'g', create: true }).open()
    // They had arrived, and are not stored a second time.
    const got = await receive(session, 4)
    expect(got.map(({ message: { id } }) => id)).toEqual([first, ...batch].map(({ id }) => id))
    expect((await direct.source({ group: 'g' }).stats()).length).toBe(4)
    await session.close()
    await publisher.close()
    await direct.close()
  })

  test('a cut connection that comes back loses nothing unsettled, and charges nobody', async () => {
    await using proxy = await proxied()
    const mine = broker(connecting(proxy.url(url()), { ignoreClusterUpdates: true }))
    const source = mine.source({ group: 'g', create: true, block: 100 })
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.publish([message(), message(), message()], NEVER)
    const session = await source.open()
    const held = await receive(session, 2)
    proxy.cut()
    await until('the rest comes', async () => {
      const taken = await session.take({ count: 1, bytes: 1e6 }, NEVER).catch(() => [])
      held.push(...taken)
      return held.length === 3
    })
    expect(held.map(({ attempts }) => attempts)).toEqual([0, 0, 0])
    await until('they are settled', async () =>
      session.settle(held.map((delivery) => [delivery, DONE])).then(
        (stale) => stale === 0,
        () => false,
      ),
    )
    expect(session.lost.aborted).toBe(false)
    await session.close()
    await until('nothing is pending', async () => (await source.stats()).pending === 0)
    await publisher.close()
    await mine.close()
  })

  test('a connection that is closed for good loses the session, and the next one has it at once, uncharged', async () => {
    await using proxy = await proxied()
    const mine = broker(connecting(proxy.url(url()), { reconnect: false }))
    const source = mine.source({ group: 'g', create: true, ackWait: '10m', block: 100 })
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.publish([message(), message()], NEVER)
    const first = await source.open()
    const held = await receive(first, 2)
    proxy.cut()
    await until('it is lost', async () => first.lost.aborted)
    await first.close()
    expect(await first.settle(held.map((delivery) => [delivery, DONE]))).toBe(2)
    const second = await source.open()
    const again = await receive(second, 2)
    expect(again.map(({ attempts }) => attempts)).toEqual([0, 0])
    expect(await second.settle(again.map((delivery) => [delivery, DONE]))).toBe(0)
    await second.close()
    await publisher.close()
    await mine.close()
  })

  test('a silent server: publish is down in time, the session is lost, and closing does not hang', async () => {
    await using proxy = await proxied()
    const mine = broker(connecting(proxy.url(url()), { ignoreClusterUpdates: true, timeout: 2000 }), { timeout: 1500 })
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const session = await mine.source({ group: 'g', create: true, block: 50 }).open()
    await publisher.publish([message()], NEVER)
    proxy.blackHole()
    expect((await publisher.publish([message()], NEVER))[0]!.kind).toBe('down')
    await until('it is lost', async () => {
      await session.take({ count: 10, bytes: 1e6 }, NEVER).catch(() => {})
      return session.lost.aborted
    })
    await session.close()
    await proxy.restore()
    await publisher.close()
  })

  test('kills of the consumer process while messages flow: nothing is lost', async () => {
    const size = scale({ test: 1000, full: 5000, torture: 50_000 })
    const kills = scale({ test: 3, full: 10, torture: 60 })
    const file = join(folder, fresh())
    const mine = broker(connecting(url()))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const sent = Array.from({ length: size }, () => message())
    expect((await publisher.publish(sent, NEVER)).every(({ kind }) => kind === 'ok')).toBe(true)
    for (let kill = 0; kill < kills; kill++) {
      const victim = script([url(), mine.stream, 'g', file, '2', '1000'])
      await victim.line('ready')
      const goal = Math.floor(((kill + 1) * size) / (kills + 2))
      await until('some progress', async () => new Set(await handled(file)).size >= goal, 60_000)
      victim.kill()
      await victim.finished
    }
    const last = script([url(), mine.stream, 'g', file, '0', '1000'])
    await until('all are handled', async () => new Set(await handled(file)).size === size, 60_000)
    const source = mine.source({ group: 'g' })
    await until('nothing is pending', async () => (await source.stats()).pending === 0)
    last.kill()
    await last.finished
    const ids = await handled(file)
    expect(sent.filter(({ id }) => !ids.includes(id))).toEqual([])
    // At most what each killed process had not settled came twice.
    expect(ids.length - size).toBeLessThanOrEqual(kills * 40)
    expect(await source.stats()).toMatchObject({ dead: 0, lag: 0 })
    await publisher.close()
    await mine.close()
  })

  for (const what of ['consumer', 'stream', 'dead letters'] as const) {
    test(`the ${what} is deleted while running: told, made again, and the flow goes on`, async () => {
      const mine = broker(connecting(url()))
      const publisher = mine.publisher({ subject: `${mine.stream}.a` })
      const seen: string[] = []
      const flow = new Flow({
        name: 'deleted',
        from: mine.source({ group: 'g', create: true, block: 100 }),
        step: {
          each: ({ message: { id, type } }) => {
            if (type === 'bad') throw new Error('always')
            seen.push(id)
          },
        },
        retry: { attempts: 1 },
        outage: { min: 10, max: 50 },
      })
      const telemetry = recordTelemetry(['warning'])
      await flow.start()
      const arrives = async (type = 'good') => {
        const one = message('{}', { type })
        await until('it is published', async () => {
          const outcomes = await publisher.publish([one], NEVER).catch(() => [])
          return outcomes[0]?.kind === 'ok'
        })
        await until('it comes', async () => seen.includes(one.id) || type === 'bad')
      }
      await arrives()
      const { jetstreamManager } = await import('@nats-io/jetstream')
      const admin = await connecting(url())()
      const manager = await jetstreamManager(admin)
      if (what === 'consumer') await manager.consumers.delete(mine.stream, 'g')
      else await manager.streams.delete(what === 'stream' ? mine.stream : `${mine.stream}-dead`)
      await arrives(what === 'dead letters' ? 'bad' : 'good')
      if (what === 'dead letters') {
        const source = mine.source({ group: 'g' })
        await until('it is dead, where it should be', async () => (await source.stats()).dead === 1)
      }
      await arrives()
      await flow.stop()
      const told = telemetry.of('warning').filter(({ where }) => where.includes(mine.stream))
      telemetry.stop()
      const texts = new Set(told.map((warning) => warning.message))
      expect([...texts]).toEqual([expect.stringMatching(/ was deleted\. .* comes again, handled or not/)])
      await admin.close()
      await publisher.close()
      await mine.close()
    })
  }
})

describeWith(['nats'], 'a group that began with what comes', () => {
  const url = () => service('nats').url

  test.each(['consumer', 'consumer, and its dead letters purged before,', 'stream'])(
    'whose %s is deleted begins where it began, not with what comes now',
    async (what) => {
      const mine = broker(connecting(url()))
      const publisher = mine.publisher({ subject: `${mine.stream}.a` })
      const [before, handled, pending, after] = [message(), message(), message(), message()]
      await publisher.publish([before], NEVER)
      const source = mine.source({ group: 'g', create: true, start: 'new', block: 50 })
      const session = await source.open()
      await publisher.publish([handled, pending], NEVER)
      const got = await receive(session, 2)
      expect(got.map(({ message: { id } }) => id)).toEqual([handled.id, pending.id])
      await session.settle([[got[0]!, DONE]])
      const { jetstreamManager } = await import('@nats-io/jetstream')
      const admin = await connecting(url())()
      const manager = await jetstreamManager(admin)
      if (what.includes('purged')) {
        await manager.streams.purge(`${mine.stream}-dead`)
        await (await source.open()).close()
      }
      if (what === 'stream') await manager.streams.delete(mine.stream)
      else await manager.consumers.delete(mine.stream, 'g')
      // Nobody reads when this comes.
      await until('it is published', async () => {
        const outcomes = await publisher.publish([after], NEVER).catch(() => [])
        return outcomes[0]?.kind === 'ok'
      })
      await session.close().catch(() => {})
      const other = broker(connecting(url()), { stream: mine.stream })
      const second = await other.source({ group: 'g', create: true, start: 'new', block: 50 }).open()
      const wanted = what === 'stream' ? [after.id] : [handled.id, pending.id, after.id]
      expect((await receive(second, wanted.length)).map(({ message: { id } }) => id)).toEqual(wanted)
      await second.close()
      await admin.close()
      await publisher.close()
      await mine.close()
      await other.close()
    },
  )
})

describeWith(['nats'], 'members of a group that begin with what comes at the same time', () => {
  test('begin at one place, which is the one that is kept', async () => {
    const { url } = service('nats')
    const mine = broker(connecting(url))
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    await publisher.publish([message()], NEVER)
    let goOn = () => {}
    const gate = new Promise<void>((resolve) => {
      goOn = resolve
    })
    let held = false
    /** It has looked where to begin, and is slow to say so. */
    const slow = async () => {
      const connection = await connecting(url)()
      const publish = connection.publish.bind(connection)
      connection.publish = (subject, ...given) => {
        if (!subject.endsWith('.start.g')) return publish(subject, ...given)
        held = true
        void gate.then(() => publish(subject, ...given))
      }
      return connection
    }
    const open = (connection: typeof slow) =>
      broker(connection, { stream: mine.stream }).source({ group: 'g', create: true, start: 'new' }).open()
    const first = open(slow)
    await until('it has looked', () => held)
    await publisher.publish([message(), message()], NEVER)
    const second = await open(connecting(url))
    goOn()
    const sessions = [await first, second]
    const { jetstreamManager } = await import('@nats-io/jetstream')
    const admin = await connecting(url)()
    const manager = await jetstreamManager(admin)
    const { config } = await manager.consumers.info(mine.stream, 'g')
    const [dead, subject] = [`${mine.stream}-dead`, `${mine.stream}-dead.start.g`]
    const noted = await manager.streams.getMessage(dead, { last_by_subj: subject })
    expect([config.opt_start_seq, noted!.string().split(' ')[0]]).toEqual([4, '4'])
    for (const session of sessions) await session.close()
    await admin.close()
    await publisher.close()
    await mine.close()
  })
})

describeWith(['nats'], 'nats while the server restarts', () => {
  test('stopped and started under load: nothing acknowledged is lost', async () => {
    const server = await privateNats()
    const mine = broker(connecting(server.url), { timeout: 2000 })
    const publisher = mine.publisher({ subject: `${mine.stream}.a` })
    const seen = new Set<string>()
    const from = mine.source({ group: 'g', create: true, ackWait: 2000, block: 100 })
    const each = ({ message: { id } }: { message: { id: string } }) => {
      seen.add(id)
    }
    const flow = new Flow({ name: 'restart', from, step: { each }, outage: { min: 20, max: 100 } })
    const accepted = new Set<string>()
    await flow.start()
    let over = false
    const load = (async () => {
      while (!over) {
        const batch = Array.from({ length: 20 }, () => message())
        const outcomes = await publisher.publish(batch, NEVER).catch(() => [])
        outcomes.forEach(({ kind }, i) => {
          if (kind === 'ok') accepted.add(batch[i]!.id)
        })
        await systemClock.sleep(outcomes.some(({ kind }) => kind === 'ok') ? 1 : 20)
      }
    })()
    for (let restart = 1; restart <= scale({ test: 2, full: 6, torture: 20 }); restart++) {
      const before = accepted.size
      await until('messages flow', async () => accepted.size > before + 200)
      // A kill of the process, not of the machine: what the server has written the system still has.
      await control.stop(server, restart % 2 === 0 ? 'fast' : 'kill')
      await control.start(server)
    }
    const before = accepted.size
    await until('messages flow again', async () => accepted.size > before + 200)
    over = true
    await load
    await until('all of them came', async () => [...accepted].every((id) => seen.has(id)))
    await flow.stop()
    expect((await mine.source({ group: 'g' }).stats()).dead).toBe(0)
    await publisher.close()
    await mine.close()
  })
})
