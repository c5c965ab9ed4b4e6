import { once } from 'node:events'
import { request as nodeRequest } from 'node:http'
import { connect, type Socket } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import { afterEach, describe, expect, test } from 'vitest'
import { encode } from '../../../src/brokers/http/encoding.ts'
import { type Incoming, Pieces } from '../../../src/brokers/http/incoming.ts'
import {
  type HttpDelivery,
  type HttpReceiver,
  type HttpReceiverOptions,
  httpReceiver,
  nodeListener,
} from '../../../src/brokers/http/index.ts'
import { secretsOf, signatureOf } from '../../../src/brokers/http/signature.ts'
import { Message, type RawMessage, Reject, RetryLater } from '../../../src/core/index.ts'
import { DONE, RELEASE, type Session } from '../../../src/flow/index.ts'
import { type Consumer, event, Router, run } from '../../../src/index.ts'
import { FakeClock, recordTelemetry } from '../../../src/testing/index.ts'
import { message, NEVER, OTHER_SECRET, SECRET, sender, serve, serveReceiver, until } from './support.ts'

const secrets = secretsOf('test', SECRET)
const Tested = event<{ n: number }>('http.tested')

/** A request as a sender makes it, and changed as a test wants it. */
function requestOf(
  sent: RawMessage = message(),
  change: {
    headers?: Record<string, string | undefined>
    body?: NonNullable<RequestInit['body']>
    mode?: 'binary' | 'structured'
    at?: number
    method?: string
  } = {},
): Request {
  const { headers, body } = encode(sent, change.mode ?? 'binary', secrets, change.at ?? Date.now())
  const given = new Headers(headers)
  for (const [name, value] of Object.entries(change.headers ?? {})) {
    if (value === undefined) given.delete(name)
    else given.set(name, value)
  }
  const method = change.method ?? 'POST'
  const init = { method, headers: given, duplex: 'half', ...(method === 'GET' ? {} : { body: change.body ?? body }) }
  return new Request('http://receiver/hooks', init as RequestInit)
}

const workers: { stop(): unknown }[] = []
afterEach(async () => {
  for (const worker of workers.splice(0)) await worker.stop()
})

/** A receiver with a router behind it that keeps what it handles. */
async function receiving(
  options: Partial<HttpReceiverOptions> = {},
  handler: (message: RawMessage) => unknown = () => {},
) {
  const receiver = httpReceiver({ secrets: SECRET, ...options })
  const handled: RawMessage[] = []
  const router = new Router('hooks', { unknown: 'dead-letter' }).on(Tested, async (one) => {
    handled.push(one as unknown as RawMessage)
    await handler(one as unknown as RawMessage)
  })
  const consumer = router.consume(receiver, { grace: 100 })
  await consumer.start()
  workers.push(consumer)
  await until('a session is open', async () => (await receiver.handle(requestOf())).status !== 503)
  handled.length = 0
  return { receiver, handled, consumer }
}

async function statusOf(receiver: HttpReceiver, request: Request): Promise<number> {
  return (await receiver.handle(request)).status
}

describe('a webhook that is in order', () => {
  test.each(['binary', 'structured'] as const)('%s: handled, then answered 204', async (mode) => {
    const { receiver, handled } = await receiving()
    const sent = message('{"total":1}', { extensions: { partitionkey: 'k' } })
    const response = await receiver.handle(requestOf(sent, { mode }))
    expect([response.status, await response.text()]).toEqual([204, ''])
    expect([handled[0]!.id, handled[0]!.key]).toEqual([sent.id, 'k'])
  })

  test('the answer waits for the handler', async () => {
    let finish = () => {}
    const { receiver, handled } = await receiving({}, ({ subject }) => {
      return subject === 'slow' ? new Promise<void>((resolve) => (finish = resolve)) : undefined
    })
    let answered = false
    const answer = receiver.handle(requestOf(message('{}', { subject: 'slow' }))).finally(() => (answered = true))
    await until('it is being handled', () => handled.length === 1)
    await new Promise((resolve) => setTimeout(resolve, 30))
    expect(answered).toBe(false)
    finish()
    expect((await answer).status).toBe(204)
  })

  test('secrets are changed while both are in force', async () => {
    const { receiver } = await receiving({ secrets: [OTHER_SECRET, SECRET] })
    expect(await statusOf(receiver, requestOf())).toBe(204)
  })

  test('a permanent failure is 422, without a word about it', async () => {
    const { receiver } = await receiving({}, ({ subject }) => {
      if (subject === 'bad') throw new Reject('the iban DE44 is wrong')
    })
    const response = await receiver.handle(requestOf(message('{}', { subject: 'bad' })))
    expect(response.status).toBe(422)
    expect(await response.text()).not.toContain('DE44')
  })

  test('one that is to come again is 500, and says when', async () => {
    const { receiver } = await receiving({}, ({ subject }) => {
      if (subject === 'later') throw new RetryLater('42s')
    })
    const response = await receiver.handle(requestOf(message('{}', { subject: 'later' })))
    expect([response.status, response.headers.get('retry-after')]).toEqual([500, '42'])
  })

  test('an event no handler knows is refused for good, where the router says so', async () => {
    const { receiver } = await receiving()
    expect(await statusOf(receiver, requestOf(message('{}', { type: 'who.knows' })))).toBe(422)
  })
})

describe('a webhook that is not', () => {
  const hour = 3_600_000

  test('when no signature is right its operator is told, once in an hour and without a secret', async () => {
    const clock = new FakeClock(Date.now())
    const name = `refusing ${process.pid}`
    const { receiver } = await receiving({ name, clock })
    const recorder = recordTelemetry(['warning'])
    const told = () => recorder.of('warning').filter(({ where }) => where === name)
    const forged = () => statusOf(receiver, requestOf(message(), { headers: { 'webhook-id': 'other' } }))
    const unsigned = () => statusOf(receiver, requestOf(message(), { headers: { 'webhook-signature': undefined } }))
    expect([await forged(), await unsigned()]).toEqual([401, 401])
    // Strangers come too: one signature that is right says that nothing is wrong here.
    expect(await statusOf(receiver, requestOf())).toBe(204)
    expect([await unsigned(), await unsigned()]).toEqual([401, 401])
    expect(told()).toEqual([])
    expect(await forged()).toBe(401)
    expect(told().map(({ message: text }) => text)).toEqual([
      '3 requests in a row were refused with 401: the signature is wrong; look at the secrets of both sides and at their clocks',
    ])
    for (let i = 0; i < 20; i++) await forged()
    expect(told()).toHaveLength(1)
    await clock.advance(hour)
    await forged()
    expect(told()).toHaveLength(2)
    recorder.stop()
  })

  const refused: [string, () => Request, number][] = [
    ['not signed', () => requestOf(message(), { headers: { 'webhook-signature': undefined } }), 401],
    ['without an id', () => requestOf(message(), { headers: { 'webhook-id': undefined } }), 401],
    ['without a time', () => requestOf(message(), { headers: { 'webhook-timestamp': undefined } }), 401],
    ['an hour old', () => requestOf(message(), { at: Date.now() - hour }), 401],
    ['an hour ahead', () => requestOf(message(), { at: Date.now() + hour }), 401],
    ['a time that is none', () => requestOf(message(), { headers: { 'webhook-timestamp': '1e9' } }), 401],
    [
      'a time of another request',
      () => requestOf(message(), { headers: { 'webhook-timestamp': String(Math.floor(Date.now() / 1000) + 1) } }),
      401,
    ],
    ['an id of another request', () => requestOf(message(), { headers: { 'webhook-id': 'other' } }), 401],
    ['a body of another request', () => requestOf(message(), { body: '{"n":2}' }), 401],
    ['a signature of nothing', () => requestOf(message(), { headers: { 'webhook-signature': 'v1,AAAA v2,x' } }), 401],
    ['an event id that was not signed', () => requestOf(message(), { headers: { 'ce-id': 'replayed' } }), 401],
    ['an attribute that was added', () => requestOf(message(), { headers: { 'ce-tenantid': 'other' } }), 401],
    [
      'an attribute that was removed',
      () => requestOf(message('{}', { subject: 'a' }), { headers: { 'ce-subject': undefined } }),
      401,
    ],
    ['another content type', () => requestOf(message(), { headers: { 'content-type': 'text/plain' } }), 401],
    ['got', () => requestOf(message(), { method: 'GET' }), 405],
    ['put', () => requestOf(message(), { method: 'PUT' }), 405],
    [
      'a format nobody reads',
      () => requestOf(message(), { headers: { 'content-type': 'application/cloudevents+avro' } }),
      415,
    ],
    ['compressed', () => requestOf(message(), { headers: { 'content-encoding': 'gzip' } }), 415],
    ['a batch', () => requestOf(message(), { headers: { 'content-type': 'application/cloudevents-batch+json' } }), 415],
    ['too large', () => requestOf(message(JSON.stringify('x'.repeat(3000)))), 413],
    [
      'too large, though its length says otherwise',
      () => requestOf(message(), { headers: { 'content-length': '7' }, body: endless(5000) }),
      413,
    ],
    [
      'too large, without a length',
      () => requestOf(message(), { headers: { 'content-length': undefined }, body: endless(5000) }),
      413,
    ],
    ['a body that breaks off, which says nothing of the message', () => requestOf(message(), { body: broken() }), 408],
  ]

  test.each(refused)('%s: refused, and nobody hears of it', async (_, make, status) => {
    const { receiver, handled } = await receiving({ maxBytes: 2000 })
    expect(await statusOf(receiver, make())).toBe(status)
    expect(handled).toEqual([])
  })

  const signedBody = (body: string, headers: Record<string, string>): Request => {
    const type = headers['content-type'] ?? ''
    const base = encode(message(body, { datacontenttype: 'application/octet-stream' }), 'binary', [], 0)
    const sent = Object.fromEntries(
      Object.entries({ ...base.headers, ...headers }).filter(([name]) => !name.startsWith('ce-') || name in headers),
    )
    return new Request('http://receiver/', { method: 'POST', headers: { ...sent, 'content-type': type }, body })
  }
  test.each([
    ['JSON that is none', signedBody('{"specversion":', { 'content-type': 'application/cloudevents+json' })],
    ['JSON that is no event', signedBody('[1,2]', { 'content-type': 'application/cloudevents+json' })],
    [
      'an event without an id',
      signedBody('{"specversion":"1.0","source":"s","type":"t"}', { 'content-type': 'application/cloudevents+json' }),
    ],
    [
      'another version',
      signedBody('{"specversion":"0.3","id":"1","source":"s","type":"t"}', {
        'content-type': 'application/cloudevents+json',
      }),
    ],
    ['no attributes', signedBody('{}', { 'content-type': 'application/json' })],
    [
      'an attribute with an odd name',
      signedBody('{}', {
        'content-type': 'application/json',
        'ce-specversion': '1.0',
        'ce-id': '1',
        'ce-source': 's',
        'ce-type': 't',
        'ce-a_b': 'x',
      }),
    ],
    [
      'a broken escape',
      signedBody('{}', {
        'content-type': 'application/json',
        'ce-specversion': '1.0',
        'ce-id': '%FF',
        'ce-source': 's',
        'ce-type': 't',
      }),
    ],
  ])('%s is no CloudEvent: 400', async (_, request) => {
    const receiver = httpReceiver({ unsigned: true })
    const session = await receiver.open()
    expect(await statusOf(receiver, request)).toBe(400)
    await session.close()
  })

  test('attributes that are not signed are taken where they are trusted', async () => {
    const { receiver } = await receiving({ trustAttributes: true })
    const sent = requestOf()
    const [v1] = sent.headers.get('webhook-signature')!.split(' ')
    sent.headers.set('webhook-signature', v1!)
    expect(await statusOf(receiver, sent)).toBe(204)
    const strict = await receiving()
    const again = requestOf()
    again.headers.set('webhook-signature', again.headers.get('webhook-signature')!.split(' ')[0]!)
    const response = await strict.receiver.handle(again)
    expect([response.status, await response.text()]).toEqual([
      401,
      expect.stringContaining('does not cover the attributes'),
    ])
  })

  test('data that its handler cannot read is refused for good, by the router as from any source', async () => {
    const receiver = httpReceiver({ secrets: SECRET })
    const consumer: Consumer = new Router('typed').on(Tested, () => {}).consume(receiver) as never
    await consumer.start()
    workers.push(consumer)
    await until('a session is open', async () => (await receiver.handle(requestOf())).status === 204)
    expect(await statusOf(receiver, requestOf(message('{"n":')))).toBe(422)
  })

  test('whatever comes, there is an answer below 500 or 503, and it is never an error of ours', async () => {
    const receiver = httpReceiver({ secrets: SECRET, maxBytes: 1000, timeout: 20 })
    const session = await receiver.open()
    const name = fc.constantFrom(
      'webhook-id',
      'webhook-timestamp',
      'webhook-signature',
      'content-type',
      'ce-id',
      'ce-specversion',
      'ce-time',
      'ce-x',
      'content-length',
    )
    const value = fc.oneof(
      fc.constantFrom(
        'application/cloudevents+json',
        'application/cloudevents; charset=x',
        'v1,AAAA',
        '99999999999999999999',
        '-1',
        '%',
        '%FF%',
        '"',
        '1.0',
      ),
      fc.string({ maxLength: 60 }).map((text) => text.replace(/[^\t\x20-\xff]/g, '')),
    )
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(name, value)),
        fc.uint8Array({ maxLength: 200 }),
        fc.boolean(),
        async (pairs, body, good) => {
          const request = good ? requestOf() : new Request('http://x/', { method: 'POST', body })
          for (const [header, text] of pairs) request.headers.set(header, text)
          const { status } = await receiver.handle(request)
          expect(status < 500 || status === 503, String(status)).toBe(true)
        },
      ),
      { numRuns: 300, seed: 7 },
    )
    await session.close()
  })
})

describe('a receiver that cannot take more', () => {
  test('nobody takes messages: 503, come again', async () => {
    const receiver = httpReceiver({ secrets: SECRET })
    const response = await receiver.handle(requestOf())
    expect([response.status, response.headers.get('retry-after')]).toEqual([503, '1'])
  })

  test('too many messages wait: 503', async () => {
    const receiver = httpReceiver({ secrets: SECRET, maxMessages: 2 })
    const session = await receiver.open()
    const waiting = [requestOf(), requestOf()].map((request) => receiver.handle(request))
    const [first, second] = await (async () => {
      const taken: unknown[] = []
      await until('both are here', async () => {
        taken.push(...(await session.take({ count: 10, bytes: 1e6 }, NEVER)))
        return taken.length === 2
      })
      return taken as Awaited<ReturnType<typeof session.take>>
    })()
    expect(await statusOf(receiver, requestOf())).toBe(503)
    await session.settle([
      [first!, DONE],
      [second!, DONE],
    ])
    expect((await Promise.all(waiting)).map(({ status }) => status)).toEqual([204, 204])
    await session.close()
  })

  test('too many that come at the same time: 503, though none was there yet when their bodies were read', async () => {
    const receiver = httpReceiver({ secrets: SECRET, maxMessages: 2 })
    const session = await receiver.open()
    const answers = Array.from({ length: 10 }, () => receiver.handle(requestOf()))
    const settled: number[] = []
    for (const answer of answers) answer.then(({ status }) => settled.push(status))
    await until('there is no room for most', () => settled.length >= 8)
    const taken = await session.take({ count: 100, bytes: 1e6 }, NEVER)
    expect(taken.length).toBe(2)
    await session.settle(taken.map((delivery) => [delivery, DONE]))
    await Promise.all(answers)
    expect(settled.toSorted()).toEqual([204, 204, ...Array.from({ length: 8 }, () => 503)])
    await session.close()
  })

  test('a message that takes too long is answered 503, and who sends it again gets the answer of the first', async () => {
    const clock = new FakeClock(Date.now())
    const receiver = httpReceiver({ secrets: SECRET, clock, timeout: '5s', tolerance: '999d' })
    const session = await receiver.open()
    const sent = message()
    const first = receiver.handle(requestOf(sent, { at: clock.now() }))
    const taken: Awaited<ReturnType<typeof session.take>>[number][] = []
    await until('it is here', async () => {
      taken.push(...(await session.take({ count: 10, bytes: 1e6 }, NEVER)))
      return taken.length === 1
    })
    await clock.advance(5000)
    expect((await first).status).toBe(503)
    const again = receiver.handle(requestOf(sent, { at: clock.now() }))
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(await session.take({ count: 10, bytes: 1e6 }, NEVER), 'it is unsettled already').toEqual([])
    await session.settle([[taken[0]!, DONE]])
    expect((await again).status).toBe(204)
    await session.close()
  })

  test('a client that hangs up before its turn leaves nothing behind', async () => {
    const receiver = httpReceiver({ secrets: SECRET })
    const session = await receiver.open()
    const gone = new AbortController()
    const request = new Request(requestOf(), { signal: gone.signal })
    const answer = receiver.handle(request)
    await new Promise((resolve) => setTimeout(resolve, 20))
    gone.abort()
    expect((await answer).status).toBe(503)
    expect(await session.take({ count: 10, bytes: 1e6 }, NEVER)).toEqual([])
    await session.close()
  })

  test('stopping: new ones are answered 503, those that are being handled get their replies', async () => {
    const receiver = httpReceiver({ secrets: SECRET })
    const session = await receiver.open()
    const answer = receiver.handle(requestOf())
    const taken: Awaited<ReturnType<typeof session.take>>[number][] = []
    await until('it is here', async () => {
      taken.push(...(await session.take({ count: 10, bytes: 1e6 }, NEVER)))
      return taken.length === 1
    })
    let stopped = false
    const stopping = receiver.stop().then(() => {
      stopped = true
    })
    const refused = await receiver.handle(requestOf())
    expect([refused.status, refused.headers.get('connection')]).toEqual([503, 'close'])
    expect(stopped).toBe(false)
    await session.settle([[taken[0]!, DONE]])
    expect((await answer).status).toBe(204)
    await stopping
    await session.close()
  })

  test('stopping does not wait for ever: what is not handled in time is answered 503', async () => {
    const receiver = httpReceiver({ secrets: SECRET, grace: 30 })
    const session = await receiver.open()
    const answer = receiver.handle(requestOf())
    await receiver.stop()
    expect((await answer).status).toBe(503)
    await session.close()
  })

  test('what is released waits for the next session, which answers it', async () => {
    const receiver = httpReceiver({ secrets: SECRET })
    const first = await receiver.open()
    const answer = receiver.handle(requestOf())
    const taken: Awaited<ReturnType<typeof first.take>>[number][] = []
    await until('it is here', async () => {
      taken.push(...(await first.take({ count: 10, bytes: 1e6 }, NEVER)))
      return taken.length === 1
    })
    await first.settle([[taken[0]!, RELEASE]])
    const second = await receiver.open()
    const [again] = await second.take({ count: 10, bytes: 1e6 }, NEVER)
    await second.settle([[again!, DONE]])
    expect((await answer).status).toBe(204)
    for (const session of [first, second]) await session.close()
  })

  test('run() stops it first, then its consumer', async () => {
    const receiver = httpReceiver({ secrets: SECRET })
    const consumer = new Router('hooks').on(Tested, () => {}).consume(receiver)
    const stop = new AbortController()
    const running = run([receiver, consumer], { signal: stop.signal })
    await until('it takes', async () => (await receiver.handle(requestOf())).status === 204)
    stop.abort()
    await running
    expect(await statusOf(receiver, requestOf())).toBe(503)
  })
})

describe.each([
  ['as it comes', false],
  ['as a web request', true],
])('on a real socket, %s', (_, web) => {
  const consuming = async (options: Partial<HttpReceiverOptions> = {}) => {
    const site = await serveReceiver(options, web)
    const handled: string[] = []
    const consumer = new Router('hooks').on(Tested, ({ id }) => void handled.push(id)).consume(site.receiver)
    await consumer.start()
    workers.push(consumer)
    await until('a session is open', async () => (await site.receiver.handle(requestOf())).status === 204)
    handled.length = 0
    return Object.assign(site, { handled })
  }

  test('a body that is too large is answered 413 while it is still being sent', async () => {
    await using site = await consuming({ maxBytes: 1000 })
    const to = sender(site.url)
    const large = message(JSON.stringify('x'.repeat(500_000)))
    const outcomes = await to.publish([large, message()], NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['rejected', 'ok'])
    expect(String((outcomes[0] as { error: unknown }).error)).toContain('413')
    await to.close()
  })

  test('a chunked body without end is cut off', async () => {
    await using site = await consuming({ maxBytes: 1000 })
    const { headers } = encode(message(), 'binary', secrets, Date.now())
    delete (headers as Record<string, string>)['content-length']
    const status = await new Promise<number | undefined>((resolve) => {
      const request = nodeRequest(site.url, { method: 'POST', headers }, (response) => {
        clearInterval(more)
        resolve(response.statusCode)
        request.destroy()
      })
      request.on('error', () => {})
      const more = setInterval(() => request.write('x'.repeat(500)), 1)
    })
    expect(status).toBe(413)
    expect(site.handled).toEqual([])
  })

  test('a body that trickles is answered 408, and its connection ends', async () => {
    await using site = await consuming({ bodyTimeout: 100 })
    const { headers } = encode(message(), 'binary', secrets, Date.now())
    const socket = connect(site.port, '127.0.0.1')
    let text = ''
    socket.on('data', (chunk) => (text += chunk))
    const ended = new Promise((resolve) => socket.on('close', resolve))
    socket.on('error', () => {})
    const lines = Object.entries({ ...headers, 'content-length': '1000', host: 'x' }).map(
      ([name, value]) => `${name}: ${value}`,
    )
    socket.write(`POST /hooks HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n{`)
    await ended
    expect(text).toMatch(/^HTTP\/1.1 408 /)
  })

  test('a body that something before it has read: 503, since no message is to blame, and a warning says why', async () => {
    const name = `behind a parser, ${web}`
    const receiver = httpReceiver({ secrets: SECRET, name, bodyTimeout: '60s' })
    const session = await receiver.open()
    const recorder = recordTelemetry(['warning'])
    const listener = nodeListener(receiver)
    await using site = await serve(async (request, response) => {
      for await (const _ of request) {
        // As a body parser does.
      }
      listener(request, response)
    })
    if (web) {
      const request = requestOf()
      await request.text()
      expect(await statusOf(receiver, request)).toBe(503)
    } else {
      const to = sender(site.url)
      expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
      await to.close()
    }
    expect(recorder.of('warning').filter(({ where }) => where === name)).toMatchObject([
      { message: expect.stringContaining('before body parsers') },
    ])
    recorder.stop()
    await session.close()
  })

  /** A signed request of which so many bytes of the body are sent, or all. */
  function beginTo(port: number, bytes?: number): Socket {
    const socket = connect(port, '127.0.0.1')
    socket.on('error', () => {})
    const { headers, body } = encode(message(), 'binary', secrets, Date.now())
    const lines = Object.entries({ ...headers, host: 'x' }).map(([name, value]) => `${name}: ${value}`)
    socket.write(`POST /hooks HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n${Buffer.from(body).subarray(0, bytes)}`)
    return socket
  }

  /** Its stop waits for nobody, and nothing is there to be handled. */
  async function leftNothing(receiver: HttpReceiver, session: Session<HttpDelivery>): Promise<void> {
    let stopped = false
    const stopping = receiver.stop().then(() => (stopped = true))
    await until('nobody waits for it, or reads it', () => stopped)
    await stopping
    expect(await session.take({ count: 10, bytes: 1e6 }, NEVER)).toEqual([])
    await session.close()
  }

  test('a client that hangs up before its turn leaves nothing behind', async () => {
    await using site = await serveReceiver({ grace: '60s', timeout: '60s' }, web)
    const session = await site.receiver.open()
    const socket = beginTo(site.port)
    await session.wait!(10_000, NEVER)
    socket.destroy()
    await leftNothing(site.receiver, session)
  })

  test('a client that hangs up within its body leaves nothing behind', async () => {
    await using site = await serveReceiver({ grace: '10m', bodyTimeout: '10m' }, web)
    const session = await site.receiver.open()
    const came = once(site.server, 'request')
    const socket = beginTo(site.port, 3)
    await came
    socket.destroy()
    await leftNothing(site.receiver, session)
  })

  test.each([
    'POST /hooks HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello',
    'POST http://[ HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n',
    'POST //evil HTTP/1.1\r\nhost: \r\ncontent-length: 0\r\n\r\n',
    'TRACE / HTTP/1.1\r\nhost: x\r\n\r\n',
    'GET /hooks HTTP/1.1\r\nhost: x\r\n\r\n',
    'HEAD /hooks HTTP/1.1\r\nhost: x\r\n\r\n',
    'OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n',
    'POST /hooks HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n',
    'POST /hooks HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
    'POST /hooks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
    'POST /hooks HTTP/1.1\r\nhost: x\r\nce-id: 1\r\nce-id: 2\r\ncontent-length: 0\r\n\r\n',
    'nonsense\r\n\r\n',
  ])('%j is answered below 500, and the server lives on', async (text) => {
    await using site = await consuming()
    const socket = connect(site.port, '127.0.0.1')
    let answer = ''
    socket.on('error', () => {}).on('data', (chunk) => (answer += chunk))
    socket.write(text)
    await until('an answer', () => answer.includes('\r\n\r\n'))
    socket.destroy()
    expect(Number(/^HTTP\/1.1 (\d+)/.exec(answer)![1])).toBeLessThan(500)
    const to = sender(site.url)
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('ok')
    await to.close()
  })
})

describe('what all requests hold together', () => {
  test.each([false, true])('is bounded, forged or not: more is told to come later (web requests: %s)', async (web) => {
    const size = 100_000
    await using site = await serveReceiver({ maxBytes: size, maxTotalBytes: 5 * size, bodyTimeout: '30s' }, web)
    const session = await site.receiver.open()
    const { headers } = encode(message(), 'binary', secrets, Date.now())
    const part = 'x'.repeat(size - 1)
    const sockets = Array.from({ length: 12 }, () => {
      const socket = connect(site.port, '127.0.0.1')
      const given = { ...headers, 'content-length': String(size), host: 'x' }
      const lines = Object.entries(given).map(([name, value]) => `${name}: ${value}`)
      const made = { socket, answer: '' }
      socket.on('error', () => {}).on('data', (chunk) => (made.answer += chunk))
      // All but the last byte, so that it is being read.
      socket.write(`POST /hooks HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n${part}`)
      return made
    })
    const answered = (status: number) => sockets.filter(({ answer }) => answer.startsWith(`HTTP/1.1 ${status}`)).length
    await until('some have no room', () => answered(503) >= 7)
    for (const { socket } of sockets) socket.write('x')
    await until('the others are read, and forged', () => answered(503) + answered(401) === 12)
    expect(answered(401)).toBe(5)
    // What they held is free again.
    const to = sender(site.url)
    const sending = to.publish([message(JSON.stringify('y'.repeat(90_000)))], NEVER)
    await session.wait!(10_000, NEVER)
    const taken = await session.take({ count: 1, bytes: 1e9 }, NEVER)
    await session.settle(taken.map((delivery) => [delivery, DONE]))
    expect((await sending)[0]!.kind).toBe('ok')
    for (const { socket } of sockets) socket.destroy()
    await to.close()
    await session.close()
  })
})

test('pieces of one byte, of which a stranger may send a mebibyte, take little more than their bytes', () => {
  setFlagsFromString('--expose_gc')
  const collectGarbage = runInNewContext('gc') as () => void
  const held = () => {
    collectGarbage()
    return process.memoryUsage().heapUsed
  }
  const bytes = Buffer.from(Array.from({ length: 1024 * 1024 }, (_, at) => at % 251))
  const pieces = new Pieces()
  const before = held()
  for (let at = 0; at < bytes.length; at++) pieces.add(bytes.subarray(at, at + 1))
  expect((held() - before) / bytes.length, 'bytes of memory for each of the body').toBeLessThan(20)
  expect(Buffer.compare(pieces.whole(), bytes)).toBe(0)
})

test('without a word about it, that is 64 MiB: what 400 strangers send at once does not fill the memory', async () => {
  const receiver = httpReceiver({ secrets: SECRET })
  const session = await receiver.open()
  const { headers } = encode(message(), 'binary', secrets, Date.now())
  let held = 0
  let most = 0
  const stranger = (): Incoming => ({
    method: 'POST',
    headers,
    async read({ room }) {
      let own = 0
      // A full mebibyte, in pieces, that all of them hold at once.
      while (own < 1024 * 1024) {
        await new Promise((resolve) => setImmediate(resolve))
        if (room?.(65_536) === false) {
          held -= own
          return 'no room'
        }
        own += 65_536
        held += 65_536
        most = Math.max(most, held)
      }
      await new Promise((resolve) => setImmediate(resolve))
      held -= own
      return new Uint8Array(10)
    },
    onGone: () => () => {},
  })
  const verdicts = await Promise.all(Array.from({ length: 400 }, () => receiver.receive(stranger())))
  expect(most).toBeLessThanOrEqual(64 * 1024 * 1024)
  expect(new Set(verdicts.map(({ status }) => status))).toEqual(new Set([401, 503]))
  await session.close()
})

describe('requests of others', () => {
  test('plain bodies of Standard Webhooks are read by decode; what nobody signed is not believed', async () => {
    const decode: NonNullable<HttpReceiverOptions['decode']> = ({ headers, body }) => {
      const { type, data } = JSON.parse(Buffer.from(body).toString())
      return new Message({ id: headers['webhook-id']!, source: '/billing', type }, JSON.stringify(data))
    }
    const { receiver, handled } = await receiving({ decode })
    handled.length = 0
    const body = JSON.stringify({ type: 'http.tested', data: { n: 5 } })
    const [id, timestamp] = ['msg_1', String(Math.floor(Date.now() / 1000))]
    const signature = signatureOf(secrets, { id, timestamp, body, attributes: undefined })
    const headers = { 'content-type': 'application/json', 'webhook-id': id, 'webhook-timestamp': timestamp }
    const post = (given: object, text = body) =>
      receiver.handle(new Request('http://r/', { method: 'POST', headers: { ...headers, ...given }, body: text }))
    expect((await post({ 'webhook-signature': signature })).status).toBe(204)
    expect(handled).toMatchObject([{ id: 'msg_1', type: 'http.tested', data: { n: 5 } }])
    expect((await post({ 'webhook-signature': signature, 'webhook-id': 'msg_2' })).status).toBe(401)
    const nothing = signatureOf(secrets, { id, timestamp, body: '{}', attributes: undefined })
    expect((await post({ 'webhook-signature': nothing }, '{}')).status, 'a decoder that makes no message').toBe(400)
    const broken = signatureOf(secrets, { id, timestamp, body: 'no JSON', attributes: undefined })
    const answer = await post({ 'webhook-signature': broken }, 'no JSON')
    expect([answer.status, await answer.text()]).toEqual([400, 'not a message\n'])
  })

  test('a decode that throws is told once, without what it says of the body', async () => {
    const decode = ({ body }: { body: Uint8Array }) => JSON.parse(Buffer.from(body).toString())
    const receiver = httpReceiver({ unsigned: true, name: 'decoding', decode })
    const session = await receiver.open()
    const recorder = recordTelemetry(['warning'])
    const post = () => receiver.handle(new Request('http://r/', { method: 'POST', body: 'iban DE44' }))
    expect([(await post()).status, (await post()).status]).toEqual([400, 400])
    const told = recorder.of('warning').filter(({ where }) => where === 'decoding')
    expect(told).toEqual([{ where: 'decoding', message: 'decode threw SyntaxError; such requests are answered 400' }])
    recorder.stop()
    await session.close()
  })

  test('the handshake of CloudEvents: whoever asks may send', async () => {
    const receiver = httpReceiver({ secrets: SECRET })
    const asked = { 'webhook-request-origin': 'eventemitter.example.com', 'webhook-request-rate': '120' }
    const answer = await receiver.handle(new Request('http://r/', { method: 'OPTIONS', headers: asked }))
    expect(answer.status).toBe(200)
    expect(Object.fromEntries(answer.headers)).toMatchObject({
      'webhook-allowed-origin': 'eventemitter.example.com',
      'webhook-allowed-rate': '*',
      allow: 'POST, OPTIONS',
    })
    const plain = await receiver.handle(new Request('http://r/', { method: 'OPTIONS' }))
    expect([plain.status, plain.headers.get('webhook-allowed-origin')]).toEqual([204, null])
  })
})

describe('what a receiver does without a word about it', () => {
  test('takes signatures of five minutes, and a mebibyte', async () => {
    const clock = new FakeClock(1_800_000_000_000)
    const receiver = httpReceiver({ secrets: SECRET, clock })
    const ago = (seconds: number) => statusOf(receiver, requestOf(message(), { at: clock.now() - seconds * 1000 }))
    // Nobody takes messages, but what is too old is refused before that.
    expect(await Promise.all([ago(301), ago(300), ago(-300), ago(-301)])).toEqual([401, 503, 503, 401])
    const session = await receiver.open()
    const long = (length: number) =>
      statusOf(
        receiver,
        requestOf(message(), { at: clock.now(), body: '{}', headers: { 'content-length': `${length}` } }),
      )
    expect(await Promise.all([long(1024 * 1024), long(1024 * 1024 + 1)])).toEqual([401, 413])
    await session.close()
  })

  test('waits ten seconds for a body, and as long for a handler', async () => {
    const clock = new FakeClock(1_800_000_000_000)
    const receiver = httpReceiver({ secrets: SECRET, clock })
    const session = await receiver.open()
    const never = new ReadableStream<Uint8Array>({ pull: () => new Promise(() => {}) })
    const answered: number[] = []
    const ask = (change: { body?: NonNullable<RequestInit['body']> }) =>
      statusOf(receiver, requestOf(message(), { at: clock.now(), ...change })).then((status) => answered.push(status))
    const asked = [ask({ body: never }), ask({})]
    await session.wait!(10_000, NEVER)
    await clock.advance(9999)
    expect(answered).toEqual([])
    await clock.advance(1)
    await Promise.all(asked)
    expect(answered.sort()).toEqual([408, 503])
    await session.close()
  })
})

describe('options of a receiver', () => {
  test.each([
    [{}, /give either the secrets/],
    [{ secrets: SECRET, unsigned: true }, /not both/],
    [{ secret: SECRET }, /did you mean "secrets"/],
    [{ secrets: 'x' }, /whsec_/],
    [{ secrets: SECRET, maxBytes: 0 }, /at least 1/],
    [{ secrets: SECRET, maxTotalBytes: 1000 }, /less than one body may have/],
    [{ secrets: SECRET, tolerance: 'long' }, /not a duration/],
    [{ secrets: SECRET, decode: 'json' }, /give a function/],
  ])('%j is refused', (options, text) => expect(() => httpReceiver(options as never)).toThrow(text))
})

function endless(chunks: number): ReadableStream<Uint8Array> {
  let left = chunks
  return new ReadableStream({
    pull(controller) {
      controller.enqueue(new Uint8Array(100))
      if (--left === 0) controller.close()
    },
  })
}

function broken(): ReadableStream<Uint8Array> {
  return new ReadableStream({
    pull(controller) {
      controller.error(new Error('cut'))
    },
  })
}
