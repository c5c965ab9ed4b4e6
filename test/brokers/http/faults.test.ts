import { createServer } from 'node:http'
import { afterEach, describe, expect, test } from 'vitest'
import { freePort } from '../../../scripts/services/ports.ts'
import { httpReceiver, nodeListener } from '../../../src/brokers/http/index.ts'
import { event, Relay, Router, transactional } from '../../../src/index.ts'
import { memory } from '../../../src/memory/index.ts'
import { faultProxy, recordTelemetry } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { CLEAN, site } from './fault-support.ts'
import { close, listen, message, SECRET, sender, until } from './support.ts'

const Tested = event<{ n: number }>('http.tested')

/** Outbox, relay and sender on one side, receiver with an inbox on the other, over a real socket that can be cut. */
async function world(timeout = 5000) {
  const [shop, billing] = [memory(), memory()]
  const effects: string[] = []
  let calls = 0
  const receiver = httpReceiver({ secrets: SECRET })
  const router = new Router('billing').use(transactional(billing)).on(Tested, ({ id }, { tx }) => {
    calls++
    effects.push(id)
    tx.onRollback(() => effects.splice(effects.lastIndexOf(id), 1))
  })
  const consumer = router.consume(receiver)
  await consumer.start()
  const listener = nodeListener(async (request) => {
    requests++
    return receiver.handle(request)
  })
  let requests = 0
  let server = createServer(listener)
  const port = await listen(server, await freePort())
  const proxy = await faultProxy({ host: '127.0.0.1', port })
  const to = sender(`http://127.0.0.1:${proxy.port}/hooks`, { timeout })
  const relay = new Relay({
    from: shop.outbox,
    to,
    poll: '5ms',
    maxPoll: '20ms',
    outage: { min: 5, max: 50 },
    batch: 20,
    maxBatch: 20,
  })
  return {
    shop,
    effects,
    relay,
    proxy,
    calls: () => calls,
    requests: () => requests,
    async enqueue(count: number) {
      const events = Array.from({ length: count }, (_, n) => message(`{"n":${n}}`))
      await shop.withTransaction((tx) => shop.outbox.enqueue(tx, events))
      return events.map(({ id }) => id)
    },
    async waiting() {
      const states = ['ready', 'retrying', 'held', 'dead', 'leased'] as const
      return (await shop.outbox.admin.list({ states }, { limit: 1000 })).map(({ state, attempts }) => ({
        state,
        attempts,
      }))
    },
    serverDown: () => close(server),
    async serverUp() {
      server = createServer(listener)
      await listen(server, port)
    },
    async end() {
      await relay.stop()
      await receiver.stop()
      await consumer.stop()
      await to.close()
      await proxy.close()
      await close(server)
    },
  }
}

describe('webhooks under faults', () => {
  let it: Awaited<ReturnType<typeof world>>
  afterEach(() => it.end())

  test('the connection is cut before the answer: sent again, and the inbox lets it happen once', async () => {
    it = await world()
    const [first] = await it.enqueue(1)
    const cut = it.proxy.cutAfter(1, 'downstream')
    await it.relay.start()
    await until('it is settled', async () => (await it.waiting()).length === 0)
    expect(await cut).toBe(true)
    expect(it.requests()).toBeGreaterThanOrEqual(2)
    expect(it.effects).toEqual([first])
  })

  test('the connection is cut while requests are on their way, again and again: nothing is lost, nothing doubled', async () => {
    it = await world()
    const sent = await it.enqueue(300)
    await it.relay.start()
    for (let round = 1; round <= 5; round++) {
      await until('some progress', () => it.effects.length >= Math.min(sent.length, round * 40))
      it.proxy.cut()
    }
    await until('all is settled', async () => (await it.waiting()).length === 0)
    expect([...it.effects].sort()).toEqual([...sent].sort())
  })

  test('the receiver is stopped and started under load, twice: nobody is charged, nothing is lost', async () => {
    it = await world()
    await it.relay.start()
    const sent: string[] = []
    for (let round = 0; round < scale({ test: 2, full: 6, torture: 20 }); round++) {
      sent.push(...(await it.enqueue(100)))
      await until('some progress', () => it.effects.length > round * 100)
      await it.serverDown()
      sent.push(...(await it.enqueue(20)))
      const telemetry = recordTelemetry(['flow.paused'])
      await telemetry.next('flow.paused', ({ failures }) => failures >= 3, 30_000)
      telemetry.stop()
      expect((await it.waiting()).filter(({ attempts }) => attempts > 0)).toEqual([])
      await it.serverUp()
    }
    await until('all is settled', async () => (await it.waiting()).length === 0)
    expect([...it.effects].sort()).toEqual([...sent].sort())
  })

  test('a receiver that hears and does not answer: sent again after the timeout, and effects happen once', async () => {
    it = await world(200)
    const sent = await it.enqueue(5)
    it.proxy.blackHole()
    const telemetry = recordTelemetry(['flow.paused'])
    await it.relay.start()
    await telemetry.next('flow.paused', ({ failures }) => failures >= 2, 30_000)
    telemetry.stop()
    expect((await it.waiting()).filter(({ attempts }) => attempts === 0).length).toBe(5)
    await it.proxy.restore()
    await until('all is settled', async () => (await it.waiting()).length === 0)
    expect([...it.effects].sort()).toEqual([...sent].sort())
  })
})

describeWith(['postgres'], 'webhooks with processes that are killed', () => {
  test('the receiver is killed while it handles: nothing is lost, and effects happen once', {
    timeout: 240_000,
  }, async () => {
    const it = await site()
    try {
      const size = scale({ test: 400, full: 1000, torture: 5000 })
      const sent = await it.fill(size)
      await it.relay().start()
      for (const part of [0.25, 0.6]) {
        const victim = await it.startReceiver(2)
        await until('some progress', async () => (await it.effects()) >= size * part, 120_000)
        victim.kill()
        await victim.finished
      }
      await it.startReceiver()
      await until('all is settled', async () => (await it.waiting()) === 0, 120_000)
      expect(await it.problems(sent)).toEqual(CLEAN)
    } finally {
      await it.end()
    }
  })
})
