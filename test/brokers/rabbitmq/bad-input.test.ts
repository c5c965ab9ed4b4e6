import type { Duplex } from 'node:stream'
import { afterAll, expect, test } from 'vitest'
import { decode } from '../../../src/brokers/rabbitmq/encoding.ts'
import { type RabbitmqOptions, rabbitmq } from '../../../src/brokers/rabbitmq/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import {
  brokerAt,
  client,
  describeServers,
  dropQueues,
  fresh,
  message,
  NEVER,
  plainly,
  receive,
  SERVERS,
  SOON,
  until,
} from './support.ts'

describeServers(scale(SERVERS), 'bad input', (url) => {
  const queues: string[] = []
  const freshQueue = () => {
    const queue = fresh()
    queues.push(queue)
    return queue
  }
  afterAll(() => dropQueues(url(), ...queues))

  const given = { client, url: 'amqp://localhost', exchange: 'x' }
  const wrong: [string, object, RegExp][] = [
    ['no client', { ...given, client: undefined }, /client: undefined has no connect\(\); give amqplib/],
    ['a wrong protocol', { ...given, url: 'http://localhost' }, /url: got http:; give amqp:/],
    ['text that is no URL', { ...given, url: 'secret password' }, /url: got text; give amqp:/],
    ['no URL', { ...given, url: undefined }, /url: got undefined/],
    ['an empty list of URLs', { ...given, url: [] }, /url: name at least one/],
    ['an unknown option', { ...given, exchagne: 'x' }, /unknown option "exchagne"; did you mean "exchange"/],
    ['no exchange', { client, url: 'amqp://localhost' }, /exchange: undefined is not a name/],
    ['a wrong duration', { ...given, timeout: 'soon' }, /timeout/],
    ['a pause that is none', { ...given, reconnect: 5 }, /reconnect: options must be an object, got 5/],
  ]
  test.each(wrong)('%s is refused before anything is connected', (_, options, text) => {
    expect(() => rabbitmq(options as RabbitmqOptions)).toThrow(text)
  })

  test('sources and publishers check what they are given', () => {
    const broker = rabbitmq(given)
    const source = (options: object) => () => broker.source(options as never)
    expect(source({ queue: '' })).toThrow(/queue: "" is not a name/)
    expect(source({ queue: 'q'.repeat(256) })).toThrow(/1 to 255 bytes/)
    expect(source({ queue: 'q', prefetch: 0 })).toThrow(/prefetch: 0 is not allowed/)
    expect(source({ queue: 'q', prefetch: 70_000 })).toThrow(/at most 65535/)
    expect(source({ queue: 'q', prefetsch: 5 })).toThrow(/did you mean "prefetch"/)
    expect(source({ queue: 'q', retryDelays: [] })).toThrow(/retryDelays must be a list of 1 to 20/)
    expect(source({ queue: 'q', retryDelays: ['100d'] })).toThrow(/49 days/)
    expect(source({ queue: 'q', deadLetter: { queue: 'q' } })).toThrow(/must not be the queue that is read/)
    expect(source({ queue: 'q', topics: 'order.*' })).toThrow(/topics must be a list/)
    expect(() => broker.publisher({ unroutable: 'drop' as never })).toThrow(/unroutable: "drop" is not allowed/)
    expect(() => broker.publisher({ topic: '' })).toThrow(/topic: "" is not a name/)
  })

  const [refused, away] = ['ACCESS_REFUSED', 'UNAVAILABLE']
  const places: [string, () => string, string, RegExp][] = [
    ['a wrong password', () => url().replace('guest:guest', 'guest:s3cret'), refused, /user "guest" was refused/],
    ['a wrong virtual host', () => `${url()}/nowhere`, refused, /virtual host "nowhere" does not exist/],
    ['TLS to a port without', () => url().replace('amqp:', 'amqps:'), away, /no TLS there/],
    ['a port where nobody listens', () => url().replace(/:\d+$/, ':1'), away, /ECONNREFUSED/],
    ['a host that is none', () => 'amqp://no-such-host.invalid', away, /ENOTFOUND|EAI_AGAIN/],
  ]
  test.each(places)('%s: a clear error at start, without the password', async (_, place, code, text) => {
    const broker = rabbitmq({ client, url: place(), exchange: 'x', reconnect: SOON, timeout: 5000 })
    const error = await broker.start().catch((thrown: Error) => thrown)
    expect(error).toMatchObject({ code })
    expect(String(error)).toMatch(text)
    expect(String(error)).toContain('cannot connect to RabbitMQ at amqp')
    expect(String(error)).not.toMatch(/s3cret|guest:/)
    await broker.close()
  })

  test('several URLs are tried in turn', async () => {
    const broker = brokerAt('', { url: [url().replace(/:\d+$/, ':1'), url()] })
    await until('it is connected', async () =>
      broker.start().then(
        () => true,
        () => false,
      ),
    )
    await broker.close()
  })

  test('what is not there is an error that names it, unless it is declared', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const looking = brokerAt(url(), { exchange, declare: false })
    await expect(looking.start()).rejects.toThrow(
      `there is no exchange "${exchange}"; create it, or let it be declared`,
    )
    await expect(looking.source({ queue }).open()).rejects.toMatchObject({ code: 'NOT_DECLARED' })
    await plainly(url(), (channel) => channel.assertExchange(exchange, 'topic'))
    await expect(looking.source({ queue }).open()).rejects.toThrow(`there is no exchange "${exchange}.dead"`)
    const declaring = brokerAt(url(), { exchange })
    await (await declaring.source({ queue }).open()).close()
    await (await looking.source({ queue }).open()).close()
    await plainly(url(), (channel) => channel.deleteQueue(`${queue}.retry.10000ms`))
    await expect(looking.source({ queue }).open()).rejects.toThrow(`there is no queue "${queue}.retry.10000ms"`)
    await looking.close()
    await declaring.close()
  })

  test('a queue or an exchange that exists with other settings is an error that says which', async () => {
    const [exchange, queue, classic] = [fresh('x'), freshQueue(), freshQueue()]
    await plainly(url(), async (channel) => {
      await channel.assertQueue(classic)
      await channel.assertExchange(exchange, 'fanout')
    })
    const other = brokerAt(url(), { exchange })
    await expect(other.start()).rejects.toMatchObject({ code: 'DECLARED_OTHERWISE' })
    await expect(other.start()).rejects.toThrow(/inequivalent arg 'type' for exchange.*; an exchange keeps the type/)
    const broker = brokerAt(url())
    const opening = broker.source({ queue: classic }).open()
    await expect(opening).rejects.toThrow(
      /queue "[^"]+" exists with other settings: .*inequivalent arg.*; a queue keeps/,
    )
    await (await broker.source({ queue }).open()).close()
    await expect(broker.source({ queue, deliveryLimit: 7 }).open()).rejects.toThrow(/x-delivery-limit/)
    // The broker is none the worse for it.
    expect((await broker.publish([message()], NEVER))[0]!.kind).toBe('ok')
    await other.close()
    await broker.close()
  })

  test('what AMQP cannot hold is rejected, that message alone', async () => {
    const broker = brokerAt(url())
    const session = await broker.source({ queue: freshQueue() }).open()
    const odd: RawMessage[] = [
      new Message({ id: 'r', source: '/s', type: 't' }, { n: 1n }) as unknown as RawMessage,
      message('{}', { type: 't'.repeat(300) }),
      message('{}', { extensions: { note: 'y'.repeat(70_000) } }),
      message('{}', { extensions: { note: 'é'.repeat(40_000) } }),
      new Message({ id: 'c', source: '/s', type: 't', datacontenttype: `text/${'x'.repeat(300)}` }, 'x'),
    ]
    const fine = [message(), message('{}', { id: 'i'.repeat(400) })]
    const outcomes = await broker.publish([fine[0]!, ...odd, fine[1]!], NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['ok', ...odd.map(() => 'rejected'), 'ok'])
    const received = await receive(session, 2)
    expect(received.map(({ message: { id } }) => id)).toEqual(fine.map(({ id }) => id))
    await session.close()
    await broker.close()
  })

  test('a time stamp that no calendar has is none: the message is read without', () => {
    const fields = { deliveryTag: 1, redelivered: false, exchange: 'x', routingKey: 'order.placed' }
    const read = (timestamp: number) =>
      decode({ fields, properties: { messageId: 'a', timestamp }, content: Buffer.from('{}') }).time
    expect(read(1_700_000_000)).toBe('2023-11-14T22:13:20.000Z')
    expect([1_700_000_000_000, 2 ** 64, -1e20].map(read)).toEqual([undefined, undefined, undefined])
  })

  test('headers of odd types arrive, are kept by a retry, and harm nobody', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const broker = brokerAt(url(), { exchange })
    const source = broker.source({ queue })
    const session = await source.open()
    const headers = {
      text: 'é',
      bytes: Buffer.from([0, 255]),
      yes: true,
      half: 1.5,
      large: 2 ** 40,
      table: { a: { b: [1, [2]] } },
      nothing: null,
      when: { '!': 'timestamp', value: 1_700_000_000 },
      price: { '!': 'decimal', value: { places: 2, digits: 1234 } },
      'x-waybill-attempts': 'many',
      'x-death': 'nonsense',
      traceparent: 7,
    }
    await plainly(url(), async (channel) => {
      channel.publish(exchange, 'a.b', Buffer.from('{}'), { messageId: 'odd', headers, expiration: '600000' })
      await channel.waitForConfirms()
    })
    const [first] = await receive(session, 1)
    expect([first!.message.id, first!.attempts, first!.message.extensions]).toEqual(['odd', 0, {}])
    const retry = { kind: 'retry', after: 50, charged: true, error: undefined } as const
    await session.settle([[first!, retry]])
    const [again] = await receive(session, 1)
    expect([again!.message.id, again!.message.type, again!.attempts]).toEqual(['odd', 'a.b', 1])
    const { 'x-waybill-attempts': _a, 'x-death': _d, ...kept } = headers
    expect(again!.raw.properties.headers).toMatchObject(kept)
    await session.close()
    await broker.close()
  })

  /** Headers that amqplib reads and cannot write: there it takes the name `!` for the mark of a type. */
  async function sendUnwritable(exchange: string, ...ids: readonly string[]): Promise<void> {
    await plainly(url(), async (channel) => {
      for (const messageId of ids) {
        // Inherited, so that it is no mark of this sender either.
        const headers = { odd: Object.create({ '!': 'nothing known' }), plain: 'kept' }
        channel.publish(exchange, 'odd.one', Buffer.from('{}'), { messageId, headers, persistent: true })
      }
      await channel.waitForConfirms()
    })
  }
  const RETRY = { kind: 'retry', after: 50, charged: true, error: undefined } as const
  const DEAD = { kind: 'dead', reason: 'why', error: undefined } as const

  test.each([
    ['retried', RETRY],
    ['dead', DEAD],
  ])('headers that cannot be written again: %s, it is kept as it is and stops nobody', async (_, settlement) => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const broker = brokerAt(url(), { exchange })
    const source = broker.source({ queue, prefetch: 3 })
    const session = await source.open()
    await sendUnwritable(exchange, 'a', 'b', 'c')
    const recorder = recordTelemetry(['message.dead', 'warning'])
    for (const delivery of await receive(session, 3)) await session.settle([[delivery, settlement]])
    // As many as the prefetch: without room the next would never come.
    await broker.publish([message('{}', { id: 'next' })], NEVER)
    const [next] = await receive(session, 1)
    expect(next!.message.id).toBe('next')
    await session.settle([[next!, DEAD]])
    await until('they are dead', async () => (await source.stats()).dead === 4)
    const letters = await source.deadLetters()
    expect(letters.map(({ id }) => id).sort()).toEqual(['a', 'b', 'c', 'next'])
    const odd = letters.find(({ id }) => id === 'a')!
    expect(odd).toMatchObject({ queue, reason: expect.stringContaining('rejected'), routingKey: 'odd.one' })
    expect(odd.properties.headers).toMatchObject({ odd: { '!': 'nothing known' }, plain: 'kept' })
    const told = recorder.of('message.dead').map(({ id }) => id)
    expect(told).toEqual(settlement === RETRY ? ['a', 'b', 'c'] : [])
    // They cannot be sent back, and keep nobody else from it.
    expect(await source.rearm()).toBe(1)
    expect(recorder.of('warning').filter(({ message: text }) => text.includes('cannot be sent back'))).toHaveLength(3)
    expect((await receive(session, 1))[0]!.message.id).toBe('next')
    expect((await source.stats()).dead).toBe(3)
    recorder.stop()
    await session.close()
    await broker.close()
  })

  test('a time stamp that cannot be written again: the same', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const broker = brokerAt(url(), { exchange })
    const source = broker.source({ queue, prefetch: 2 })
    const session = await source.open()
    await plainly(url(), async (channel) => {
      // amqplib would not write it: the bytes of another are exchanged on their way out.
      const [stamp, bytes] = [0x0a0b0c0d0e0f, Buffer.from('00000a0b0c0d0e0f', 'hex')]
      const { stream } = channel.connection as unknown as { stream: Duplex }
      const write = stream.write.bind(stream) as (chunk: Buffer) => boolean
      stream.write = (chunk: Buffer) => {
        const at = chunk.indexOf(bytes)
        if (at >= 0) chunk.fill(0xff, at, at + bytes.length)
        return write(chunk)
      }
      const event = (id: string) => ({ specversion: '1.0', id, source: '/s', type: 'odd.one' })
      for (const id of ['a', 'b']) {
        const headers = Object.fromEntries(
          Object.entries(event(id)).map(([name, value]) => [`cloudEvents:${name}`, value]),
        )
        channel.publish(exchange, 'odd.one', Buffer.from('{}'), {
          messageId: id,
          headers,
          timestamp: stamp,
          persistent: true,
        })
      }
      await channel.waitForConfirms()
    })
    for (const delivery of await receive(session, 2)) {
      expect(delivery.raw.properties.timestamp).toBe(2 ** 64)
      await session.settle([[delivery, RETRY]])
    }
    await broker.publish([message('{}', { id: 'next' })], NEVER)
    expect((await receive(session, 1))[0]!.message.id).toBe('next')
    await until('they are dead', async () => (await source.stats()).dead === 2)
    expect((await source.deadLetters()).map(({ id }) => id).sort()).toEqual(['a', 'b'])
    await session.close()
    await broker.close()
  })

  test('the same where the queue has no dead-letter exchange: kept without those headers', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    await plainly(url(), async (channel) => {
      await channel.assertExchange(exchange, 'topic')
      await channel.assertExchange(`${exchange}.dead`, 'direct')
      for (const name of ['', '.dead', ...[1000, 10_000, 60_000, 600_000].map((ms) => `.retry.${ms}ms`)])
        await channel.assertQueue(queue + name)
      await channel.bindQueue(queue, exchange, '#')
      await channel.bindQueue(`${queue}.dead`, `${exchange}.dead`, queue)
    })
    const broker = brokerAt(url(), { exchange, declare: false })
    const source = broker.source({ queue })
    const session = await source.open()
    await sendUnwritable(exchange, 'a')
    const [delivery] = await receive(session, 1)
    await session.settle([[delivery!, RETRY]])
    await until('it is dead', async () => (await source.stats()).dead === 1)
    const [letter] = await source.deadLetters()
    expect(letter).toMatchObject({ id: 'a', reason: expect.stringContaining('cannot be sent on') })
    expect(letter!.properties.headers).toMatchObject({ plain: 'kept', 'x-waybill-lost-headers': 'odd' })
    await session.close()
    await broker.close()
  })

  test('an encoder and a decoder of one’s own', async () => {
    const queue = freshQueue()
    const broker = brokerAt(url(), {
      encode: (sent) => ({ properties: { messageId: sent.id }, content: Buffer.from(`mine ${sent.data}`) }),
      decode: ({ content, properties }) => {
        if (!content.toString().startsWith('mine ')) throw new Error('not mine')
        const data = content.toString().slice(5)
        return new Message({ id: properties.messageId!, source: '/mine', type: 'mine' }, data)
      },
    })
    const source = broker.source({ queue })
    const session = await source.open()
    const sent = message('{"n":5}')
    await broker.publish([sent], NEVER)
    expect((await receive(session, 1))[0]!.message).toMatchObject({ id: sent.id, type: 'mine', data: '{"n":5}' })
    await plainly(url(), async (channel) => {
      channel.sendToQueue(queue, Buffer.from('theirs'), { messageId: 'theirs' })
      await channel.waitForConfirms()
    })
    await session.wait(10_000, NEVER)
    await session.take({ count: 1, bytes: 1 }, NEVER)
    await until('it is dead', async () => (await source.stats()).dead === 1)
    expect(await source.deadLetters()).toMatchObject([{ id: 'theirs', reason: 'Error: not mine', message: undefined }])
    await session.close()
    await broker.close()
  })
})
