import { afterEach, expect, test } from 'vitest'
import { type RawMessage, systemClock } from '../../../src/core/index.ts'
import { DONE, Flow, type Outcome, type Publisher } from '../../../src/flow/index.ts'
import { logTo } from '../../../src/observability/index.ts'
import { recordTelemetry, seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { type PrivateRabbitmq, privateRabbitmq } from './private.ts'
import { brokerAt, fresh, message, NEVER, receive, socketOf, spiedClient, until } from './support.ts'

const kinds = (outcomes: readonly Outcome[]) => outcomes.map(({ kind }) => kind)
const some = (count: number): RawMessage[] => Array.from({ length: count }, () => message())

describeWith(['rabbitmq'], 'rabbitmq: outages of the server', () => {
  let starting: Promise<PrivateRabbitmq> | undefined
  const ends: (() => Promise<unknown>)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0)) await end()
  })
  const server = () => {
    starting ??= privateRabbitmq()
    return starting
  }

  test('stopped and started under load: nothing lost, everything settled, all by itself', {
    timeout: 900_000,
  }, async () => {
    const { url, stop, start } = await server()
    const rounds = scale({ test: 2, full: 4, torture: 20 })
    const random = seededRandom(5)
    const [exchange, queue] = [fresh('x'), fresh()]
    const broker = brokerAt(url, { exchange })
    const source = broker.source({ queue })
    const seen = new Map<string, number>()
    const recorder = recordTelemetry(['flow.opened', 'flow.lost'])
    const flow = new Flow({
      name: 'under load',
      from: source,
      step: { each: ({ message }) => void seen.set(message.id, (seen.get(message.id) ?? 0) + 1) },
      outage: { min: 50, max: 500, jitter: 50 },
    })
    await flow.start()
    await until('it is open', () => recorder.of('flow.opened').length > 0)
    const sent: RawMessage[] = []
    let loading = true
    const load = (async () => {
      while (loading) {
        const batch = some(20)
        await publishAll(broker, batch)
        sent.push(...batch)
        await systemClock.sleep(5)
      }
    })()
    for (let round = 0; round < rounds; round++) {
      const before = sent.length
      await until('there is load', () => sent.length > before + 200)
      const opened = recorder.of('flow.opened').length
      await stop(random.next() < 0.5 ? 'kill' : 'fast')
      await systemClock.sleep(200)
      await start()
      await until('it is open again', () => recorder.of('flow.opened').length > opened, 120_000)
    }
    const before = sent.length
    await until('there is load', () => sent.length > before + 200, 120_000)
    loading = false
    await load
    await until('all came', () => sent.every(({ id }) => seen.has(id)), 120_000)
    await until('all is settled', async () => {
      const { waiting, retrying, dead } = await source.stats()
      return waiting + retrying + dead === 0
    })
    expect(recorder.of('flow.lost').length).toBeGreaterThanOrEqual(rounds)
    recorder.stop()
    await flow.stop()
    await broker.close()
  })

  test.each([
    { of: 'memory', setting: 'set_vm_memory_high_watermark', alarming: '0', usual: '0.5' },
    { of: 'disk', setting: 'set_disk_free_limit', alarming: '100000GB', usual: '50MB' },
  ])(
    'an alarm of $of: publishing is down and says why, acks go on, and it resumes by itself',
    {
      timeout: 120_000,
    },
    async ({ of, setting, alarming, usual }) => {
      const { url, ctl } = await server()
      const broker = brokerAt(url)
      const source = broker.source({ queue: fresh() })
      const session = await source.open()
      expect(kinds(await broker.publish(some(3), NEVER))).toEqual(['ok', 'ok', 'ok'])
      const received = await receive(session, 3)
      const spied = spiedClient()
      const leaving = brokerAt(url, { client: spied.client, unroutable: 'ok' })
      expect(kinds(await leaving.publish(some(1), NEVER))).toEqual(['ok'])
      await ctl(setting, alarming)
      // Each call starts an Erlang of its own, which takes seconds.
      let alarmed = true
      ends.push(async () => alarmed && ctl(setting, usual))
      const publisher = broker.publisher({ confirm: 5000 })
      let last: Outcome | undefined
      const stuck = message()
      await until('it says why', async () => {
        ;[last] = await publisher.publish([stuck], NEVER)
        return last?.kind === 'down' && String(last.error).includes('takes no messages at present')
      })
      expect(String((last as { error: unknown }).error)).toContain(`low on ${of}`)
      // At once: it is not sent and waited for.
      const began = performance.now()
      expect(kinds(await publisher.publish(some(2), NEVER))).toEqual(['down', 'down'])
      expect(performance.now() - began).toBeLessThan(4000)
      // Consumers have a connection of their own, which the server goes on listening to.
      expect(await session.settle([[received[0]!, DONE]])).toBe(0)
      const retry = { kind: 'retry', after: 0, charged: true, error: undefined } as const
      // What needs a copy waits for it, unacked; and what comes after it is acked all the same.
      const recorder = recordTelemetry(['flow.settle_failed'])
      expect(await session.settle([[received[1]!, retry]])).toBe(0)
      expect(String(recorder.of('flow.settle_failed')[0]!.error)).toContain('takes no messages at present')
      recorder.stop()
      expect(await session.settle([[received[2]!, DONE]])).toBe(0)
      // A process that is stopped meanwhile can end: no socket waits for a server that does not listen.
      const impatient = leaving.publisher({ confirm: 1000 })
      await until('the other is blocked too', async () =>
        String((await impatient.publish(some(1), NEVER)).map((one) => one.kind === 'down' && one.error)).includes(
          'takes no messages at present',
        ),
      )
      await leaving.close()
      await until('its sockets are gone', () => spied.connections.every((one) => socketOf(one).destroyed))
      await ctl(setting, usual)
      alarmed = false
      await until('it resumes', async () => kinds(await publisher.publish([stuck], NEVER))[0] === 'ok')
      const ids = new Set<string>()
      await until('both come', async () => {
        for (const { message, attempts } of await receive(session, 1)) ids.add(`${message.id} ${attempts}`)
        return ids.has(`${received[1]!.message.id} 1`) && ids.has(`${stuck.id} 0`)
      })
      await session.close()
      await broker.close()
    },
  )

  test('larger than the server takes: that message is rejected, the others arrive, and it is remembered', async () => {
    const { url, ctl } = await server()
    // It stays so: nobody sends large messages to this server afterwards.
    await ctl('eval', 'application:set_env(rabbit, max_message_size, 100000).')
    const broker = brokerAt(url)
    const session = await broker.source({ queue: fresh() }).open()
    const large = () => message(JSON.stringify('x'.repeat(200_000)))
    const batch = [message(), large(), message(), large(), message()]
    const outcomes = await broker.publish(batch, NEVER)
    expect(kinds(outcomes)).toEqual(['ok', 'rejected', 'ok', 'rejected', 'ok'])
    expect(outcomes[1]).toMatchObject({ error: { code: 'TOO_LARGE' } })
    expect(String((outcomes[1] as { error: unknown }).error)).toContain('100000')
    const ids = new Set<string>()
    await until('the others came', async () => {
      for (const { message } of await receive(session, 1)) ids.add(message.id)
      return [0, 2, 4].every((i) => ids.has(batch[i]!.id))
    })
    // Known now: the channel is not lost for it again.
    expect(kinds(await broker.publish([large()], NEVER))).toEqual(['rejected'])
    const other = broker.publisher()
    expect(kinds(await other.publish([large()], NEVER))).toEqual(['rejected'])
    await session.close()
    await broker.close()
  })

  test('a user without rights, and one whose rights end', async () => {
    const { url, ctl } = await server()
    await ctl('add_user', 'reader', 'secret')
    await ctl('set_permissions', 'reader', '^$', '.*', '.*')
    const asReader = url.replace('guest:guest', 'reader:secret')
    const exchange = fresh('x')
    const broker = brokerAt(asReader, { exchange })
    await expect(broker.start()).rejects.toMatchObject({ code: 'ACCESS_REFUSED' })
    const owner = brokerAt(url, { exchange })
    const queue = fresh()
    await (await owner.source({ queue }).open()).close()
    // What others have declared it may use.
    const looking = brokerAt(asReader, { exchange, declare: false })
    const session = await looking.source({ queue }).open()
    expect(kinds(await looking.publish(some(1), NEVER))).toEqual(['ok'])
    const [delivery] = await receive(session, 1)
    await session.settle([[delivery!, { kind: 'dead', reason: 'no', error: undefined }]])
    expect((await owner.source({ queue }).deadLetters()).map(({ reason }) => reason)).toEqual(['no'])
    await ctl('set_permissions', 'reader', '^$', '^$', '^$')
    // The server keeps what it has decided for the channels there are.
    const [refused] = await looking.publisher().publish(some(1), NEVER)
    expect(refused!.kind).toBe('down')
    expect(String((refused as { error: unknown }).error)).toMatch(/ACCESS_REFUSED.*to exchange|may not use exchange/)
    await session.close()
    for (const one of [broker, owner, looking]) await one.close()
  })

  // The last: the server stays so impatient.
  test('a message unacked for too long: the log has the reason of the server, and it is handled again', async () => {
    const { url, ctl } = await server()
    await ctl(
      'eval',
      'application:set_env(rabbit, consumer_timeout, 500), application:set_env(rabbit, channel_tick_interval, 200).',
    )
    const lines: string[] = []
    const stopLog = logTo((level, text, fields) => lines.push(`${level} ${text} ${JSON.stringify(fields)}`))
    const broker = brokerAt(url)
    const gate = new AbortController()
    let calls = 0
    const each = async () => {
      if (++calls === 1) await systemClock.sleep(60_000, gate.signal)
    }
    const flow = new Flow({ name: 'slow', from: broker.source({ queue: fresh() }), step: { each }, timeout: false })
    ends.push(async () => {
      gate.abort()
      stopLog()
      await flow.stop()
      await broker.close()
    })
    await flow.start()
    await until('it runs', () => flow.status().state === 'running')
    await publishAll(broker, some(1))
    await until('it is told', () => lines.some((line) => line.includes('flow.lost')))
    gate.abort()
    const told = lines.find((line) => line.includes('flow.lost'))
    expect(told).toMatch(
      /CHANNEL_LOST.*PRECONDITION_FAILED - delivery acknowledgement on channel \d+ timed out.*500 ms/,
    )
    await until('it is handled again', () => calls > 1)
  })
})

/** As a relay does: what did not arrive goes again. */
async function publishAll(publisher: Publisher, batch: readonly RawMessage[]): Promise<void> {
  for (let left = batch; left.length > 0; ) {
    const outcomes = await publisher.publish(left, NEVER)
    left = left.filter((_, i) => outcomes[i]!.kind !== 'ok')
    if (left.length > 0) await systemClock.sleep(50)
  }
}
