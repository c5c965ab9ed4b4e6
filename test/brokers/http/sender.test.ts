import { once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { createServer } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { type Outcome, setTopic } from '../../../src/adapter.ts'
import { type HttpSenderOptions, httpSender } from '../../../src/brokers/http/index.ts'
import { delayOf } from '../../../src/brokers/http/request.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import { event, Relay, Router } from '../../../src/index.ts'
import { memory } from '../../../src/memory/index.ts'
import { FakeClock, recordTelemetry } from '../../../src/testing/index.ts'
import { message, NEVER, SECRET, sender, serve, serveReceiver, until } from './support.ts'

const open: { close(): Promise<void> }[] = []
afterEach(async () => {
  for (const one of open.splice(0)) await one.close()
})

function made(url: HttpSenderOptions['url'], options: Partial<HttpSenderOptions> = {}) {
  const to = sender(url, options)
  open.push(to)
  return to
}

/** A server that answers with this status and these headers, and keeps what it was sent. */
async function answering(status: number | (() => number), headers: Record<string, string> = {}, body = '') {
  const requests: { request: IncomingMessage; body: string }[] = []
  const site = await serve(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    requests.push({ request, body: Buffer.concat(chunks).toString() })
    response.writeHead(typeof status === 'function' ? status() : status, headers).end(body)
  })
  return Object.assign(site, { requests })
}

async function outcomeOf(
  status: number,
  headers: Record<string, string> = {},
  options: Partial<HttpSenderOptions> = {},
) {
  await using site = await answering(status, headers)
  const [outcome] = await made(site.url, options).publish([message()], NEVER)
  return outcome!
}

describe('what an answer means', () => {
  test.each([200, 201, 202, 204, 299])('%i: it has arrived', async (status) => {
    expect(await outcomeOf(status)).toEqual({ kind: 'ok' })
  })

  test.each([400, 406, 411, 413, 414, 415, 422, 431, 451])('%i: refused for good', async (status) => {
    expect((await outcomeOf(status)).kind).toBe('rejected')
  })

  test.each([301, 302, 303, 307, 308])(
    '%i: a redirect is not followed; the address is wrong, not the message',
    async (status) => {
      const outcome = await outcomeOf(status, { location: 'http://127.0.0.1:1/' })
      expect(outcome.kind).toBe('down')
      expect(String((outcome as { error: unknown }).error)).toContain('not followed')
    },
  )

  test.each([401, 402, 403, 404, 405, 407, 409, 410, 421, 426])(
    '%i: what a deploy can mend is the destination’s',
    async (status) => {
      await using site = await answering(status)
      const to = made(site.url)
      const outcomes = await to.publish([message(), message(), message()], NEVER)
      expect(outcomes.map(({ kind }) => kind)).toEqual(['down', 'down', 'down'])
      expect(site.requests.length, 'it may be the message, so the others are tried').toBe(3)
      // With a URL for each message it concerns that one alone; an endpoint that is gone is gone.
      const [own] = await made(() => site.url).publish([message()], NEVER)
      expect(own!.kind).toBe(status === 410 ? 'rejected' : 'failed')
    },
  )

  test.each([408, 425, 500, 501, 505, 507, 599])('%i: this message, perhaps later', async (status) => {
    const outcome = await outcomeOf(status)
    expect(outcome.kind).toBe('failed')
    expect(outcome).not.toHaveProperty('after')
  })

  test.each([429, 502, 503, 504])('%i: the destination, and no message is to blame', async (status) => {
    expect((await outcomeOf(status)).kind).toBe('down')
  })

  test.each([429, 502, 503, 504])(
    '%i with a URL for each message: that message, so that none waits for another',
    async (status) => {
      await using site = await answering(status, { 'retry-after': '7' })
      const [outcome] = await made(() => site.url).publish([message()], NEVER)
      expect(outcome).toMatchObject({ kind: 'failed', after: 7000 })
    },
  )

  test('a failed message comes again when the answer says', async () => {
    expect(await outcomeOf(500, { 'retry-after': '30' })).toMatchObject({ kind: 'failed', after: 30_000 })
    expect(await outcomeOf(500, { 'retry-after': '99999999' })).toMatchObject({ after: 3_600_000 })
    expect(await outcomeOf(500, { 'retry-after': '60' }, { longestRetryAfter: '5s' })).toMatchObject({ after: 5000 })
  })

  test('Retry-After is seconds or a date, within bounds', () => {
    const now = Date.parse('2026-01-01T00:00:00Z')
    expect(delayOf('120', now, 1e9)).toBe(120_000)
    expect(delayOf('Thu, 01 Jan 2026 00:00:10 GMT', now, 1e9)).toBe(10_000)
    expect(delayOf('Wed, 31 Dec 2025 00:00:10 GMT', now, 1e9)).toBe(0)
    expect(delayOf('Fri, 01 Jan 2100 00:00:00 GMT', now, 60_000)).toBe(60_000)
    for (const nonsense of ['', 'soon', '1.5.2', 'NaN']) expect(delayOf(nonsense, now, 1000)).toBeUndefined()
  })

  test('a pause that 503 asks for is kept: nothing is sent before its end, and nobody is charged', async () => {
    let status = 503
    await using site = await answering(() => status, { 'retry-after': '20' })
    const clock = new FakeClock()
    const to = made(site.url, { clock })
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
    status = 204
    expect((await to.publish([message(), message()], NEVER)).map(({ kind }) => kind)).toEqual(['down', 'down'])
    expect(site.requests.length).toBe(1)
    await clock.advance(20_000)
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('ok')
  })

  test('once the destination is away, the rest of a call is not tried', async () => {
    await using site = await answering(503)
    const many = Array.from({ length: 200 }, () => message())
    const outcomes = await made(site.url, { concurrency: 2 }).publish(many, NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(many.map(() => 'down'))
    expect(site.requests.length).toBeLessThanOrEqual(4)
  })

  test('an answer never shows in an error, nor does what was sent', async () => {
    await using site = await answering(400, {}, 'the card 4111 1111 was declined')
    const [outcome] = await made(site.url).publish([message('{"card":"4111"}')], NEVER)
    const { error } = outcome as Extract<Outcome, { kind: 'rejected' }>
    expect(`${error} ${JSON.stringify(error)} ${(error as Error).stack}`).not.toContain('4111')
  })

  test('an answer without end is cut off; its status stands', async () => {
    await using site = await serve((request, response) => {
      request.resume()
      response.writeHead(200)
      const more = setInterval(() => response.write('x'.repeat(16_384)), 1)
      response.on('close', () => clearInterval(more))
    })
    expect((await made(site.url).publish([message()], NEVER))[0]!.kind).toBe('ok')
  })
})

describe('what nobody answers', () => {
  test('nobody listens: down', async () => {
    const site = await serve(() => {})
    await site[Symbol.asyncDispose]()
    expect((await made(site.url).publish([message()], NEVER))[0]!.kind).toBe('down')
  })

  test('a name that does not exist: down', async () => {
    const to = httpSender({ url: 'http://does-not-exist.invalid/', secrets: SECRET })
    open.push(to)
    await to.start()
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
  })

  test('no answer in time: down, and the connection is not used again', async () => {
    await using site = await serve(() => {})
    const to = made(site.url, { timeout: 100 })
    const [outcome] = await to.publish([message()], NEVER)
    expect(outcome!.kind).toBe('down')
    expect(String((outcome as { error: Error }).error.cause)).toContain('within 100 ms')
  })

  test('something that is no HTTP: down', async () => {
    const server = createServer((socket) => socket.end('SSH-2.0-OpenSSH_9.2\r\n')).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const { port } = server.address() as { port: number }
    expect((await made(`http://127.0.0.1:${port}/`).publish([message()], NEVER))[0]!.kind).toBe('down')
    server.close()
  })

  test('TLS where there is none: down', async () => {
    await using site = await answering(204)
    const to = made(site.url.replace('http:', 'https:'))
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
  })

  test('its signal ends a publish at once', async () => {
    await using site = await serve(() => {})
    const stop = new AbortController()
    const publishing = made(site.url, { concurrency: 1 }).publish([message(), message()], stop.signal)
    setImmediate(() => stop.abort(new Error('enough')))
    expect((await publishing).map(({ kind }) => kind)).toEqual(['down', 'down'])
  })

  test('a kept connection that the server was closing is replaced, and nobody notices', async () => {
    let requests = 0
    await using site = await serve((request, response) => {
      requests++
      request.resume()
      response.end()
      // As a server does whose idle limit is over just when the next request comes.
      if (requests === 1) response.on('finish', () => setImmediate(() => request.socket.resetAndDestroy()))
    })
    const to = made(site.url, { concurrency: 1 })
    for (let i = 0; i < 5; i++) expect((await to.publish([message()], NEVER))[0]!.kind).toBe('ok')
  })
})

describe('what is sent', () => {
  test('binary mode: attributes as headers, data as the body', async () => {
    await using site = await answering(204)
    const sent = message('{"a":1}', { subject: 'ü 1', extensions: { partitionkey: 'k' } })
    await made(site.url).publish([sent], NEVER)
    const [{ request, body }] = site.requests as [(typeof site.requests)[0]]
    expect(request.method).toBe('POST')
    expect(request.headers).toMatchObject({
      'content-type': 'application/json',
      'content-length': '7',
      'ce-id': sent.id,
      'ce-subject': '%C3%BC%201',
      'ce-partitionkey': 'k',
      'webhook-timestamp': expect.stringMatching(/^\d{10}$/),
    })
    expect(body).toBe('{"a":1}')
  })

  test.each(['binary', 'structured'] as const)(
    '%s: data of any characters arrives as it is, and signed',
    async (mode) => {
      const seen: string[] = []
      await using site = await serveReceiver()
      const router = new Router('any').on(event<string>('http.tested'), ({ data }) => void seen.push(data))
      const consumer = router.consume(site.receiver)
      await consumer.start()
      const texts = ['plain', 'Grüße', 'ÿ\u0080', '漢字', '😀', '']
      const sent = texts.map((text) => message(JSON.stringify(text)))
      const outcomes = await made(site.url, { mode, concurrency: 1 }).publish(sent, NEVER)
      expect(outcomes.map(({ kind }) => kind)).toEqual(texts.map(() => 'ok'))
      expect(seen).toEqual(texts)
      await site.receiver.stop()
      await consumer.stop()
    },
  )

  test('structured mode: one JSON body', async () => {
    await using site = await answering(204)
    const sent = message('{"a":1}')
    await made(site.url, { mode: 'structured' }).publish([sent], NEVER)
    const [{ request, body }] = site.requests as [(typeof site.requests)[0]]
    expect(request.headers['content-type']).toBe('application/cloudevents+json; charset=utf-8')
    expect(request.headers['ce-id']).toBeUndefined()
    expect(JSON.parse(body)).toMatchObject({ id: sent.id, data: { a: 1 } })
  })

  test('an event whose data is an event is sent as a whole, so that it is not taken for that one', async () => {
    await using site = await answering(204)
    const sent = message('{"specversion":"1.0","id":"inner","source":"s","type":"t"}', {
      datacontenttype: 'application/cloudevents+json',
    })
    await made(site.url).publish([sent], NEVER)
    expect(JSON.parse(site.requests[0]!.body)).toMatchObject({ id: sent.id, data: { id: 'inner' } })
  })

  test('a URL for each message, by topic, and headers of one’s own', async () => {
    await using site = await answering(204)
    const seen: string[] = []
    const url = (one: RawMessage, topic: string) => {
      seen.push(topic)
      return new URL(`/${one.type}`, site.url)
    }
    const sent = message('{}', { type: 'order.placed' })
    setTopic(sent, 'orders')
    await made(url, { headers: { Authorization: 'Bearer x' } }).publish([sent], NEVER)
    expect(seen).toEqual(['orders'])
    expect([site.requests[0]!.request.url, site.requests[0]!.request.headers.authorization]).toEqual([
      '/order.placed',
      'Bearer x',
    ])
  })

  test('a URL function that throws or answers nonsense refuses that message only', async () => {
    await using site = await answering(204)
    const url = (one: RawMessage) => (one.type === 'bad' ? 'ftp://x/' : site.url)
    const outcomes = await made(url).publish([message('{}', { type: 'bad' }), message()], NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['rejected', 'ok'])
  })

  test('an attribute that no header can hold refuses that message only', async () => {
    await using site = await answering(204)
    const odd = message('{}', { datacontenttype: 'text/plain; name="\u0007\n"' })
    const outcomes = await made(site.url).publish([message(), odd, message()], NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['ok', 'rejected', 'ok'])
  })

  test('no more requests at once than allowed, over connections that are kept', async () => {
    let now = 0
    let most = 0
    const sockets = new Set<unknown>()
    await using site = await serve((request, response) => {
      most = Math.max(most, ++now)
      sockets.add(request.socket)
      request.resume().on('end', () =>
        setTimeout(() => {
          now--
          response.end()
        }, 2),
      )
    })
    const to = made(site.url, { concurrency: 3 })
    const batch = () => Array.from({ length: 40 }, () => message())
    const outcomes = await Promise.all([to.publish(batch(), NEVER), to.publish(batch(), NEVER)])
    expect(outcomes.flat().every(({ kind }) => kind === 'ok')).toBe(true)
    expect(most).toBe(3)
    expect(sockets.size).toBe(3)
  })

  test('a value is encoded; one that cannot be is refused for good', async () => {
    await using site = await answering(204)
    const value = new Message({ id: '1', source: 's', type: 't' }, { n: 1n }) as unknown as RawMessage
    expect((await made(site.url).publish([value], NEVER))[0]!.kind).toBe('rejected')
  })
})

describe('options of a sender', () => {
  const url = 'https://hooks.example/'
  test.each([
    [{ url: 'nonsense' }, /no URL/],
    [{ url: 'ftp://x/' }, /ftp: is not allowed/],
    [{ url: 'https://user:secret@hooks.example/' }, /credentials in the URL/],
    [{ url: undefined }, /undefined is not allowed/],
    [{ url, secrets: undefined }, /give secrets/],
    [{ url, unsigned: true }, /not both/],
    [{ url, secretes: 'x' }, /did you mean "secrets"/],
    [{ url, mode: 'batch' }, /Allowed: binary, structured/],
    [{ url, timeout: '15' }, /not a duration/],
    [{ url, concurrency: 0 }, /at least 1/],
    [{ url, headers: { 'ce-id': 'x' } }, /cannot be set/],
    [{ url, headers: { 'x-a': 'a\nb' } }, /printable/],
    [{ url, allow: 'localhost' }, /neither a host nor a network/],
    [{ url, tls: { rejectUnauthorized: false } }, /unknown option "rejectUnauthorized"/],
  ])('%j is refused', (options, text) => {
    expect(() => httpSender({ secrets: SECRET, ...options } as never)).toThrow(text)
    try {
      httpSender({ secrets: SECRET, ...options } as never)
    } catch (error) {
      expect(String(error)).not.toContain('user:secret')
    }
  })
})

describe('under a relay', () => {
  test('an outage spends no attempt; a refusal is dead, and is re-armed', async () => {
    let status = 503
    await using site = await answering(() => status)
    const db = memory()
    const relay = new Relay({ from: db.outbox, to: made(site.url), outage: { min: 5, max: 20 }, poll: '10ms' })
    const events = Array.from({ length: 20 }, () => message())
    await db.withTransaction((tx) => db.outbox.enqueue(tx, events))
    await relay.start()
    await until('it was tried several times', () => site.requests.length > 6)
    const waiting = await db.outbox.admin.list()
    expect(waiting.every(({ attempts, state }) => attempts === 0 && state !== 'dead')).toBe(true)
    status = 422
    await until('all are dead', async () => (await db.outbox.admin.list({ states: ['dead'] })).length === 20)
    expect((await db.outbox.admin.list({ states: ['dead'] }))[0]!.lastError).toContain('responded with 422')
    status = 204
    await db.outbox.admin.rearm({ states: ['dead'] })
    await until('all arrived', async () => (await db.outbox.admin.list({ states: ['published'] })).length === 20)
    await relay.stop()
  })

  test('a wrong secret and a route that is missing cost no event; one that alone is refused is dead in the end', async () => {
    let status = 401
    const odd = message()
    const tried: number[] = []
    await using site = await serve(async (request, response) => {
      request.resume()
      tried.push(status)
      response.writeHead(status === 204 && request.headers['ce-id'] === odd.id ? 409 : status).end()
    })
    const db = memory()
    const relay = new Relay({
      from: db.outbox,
      to: made(site.url),
      outage: { min: 5, max: 20 },
      retry: { attempts: 2, backoff: { min: 5, max: 10, jitter: 0 } },
      poll: '10ms',
    })
    const recorder = recordTelemetry(['flow.paused'])
    await db.withTransaction((tx) => db.outbox.enqueue(tx, [odd, ...Array.from({ length: 50 }, () => message())]))
    await relay.start()
    await until('it is told', () => recorder.of('flow.paused').length > 0)
    for (status of [404, 301, 405]) {
      await until('it is tried again and again', () => tried.filter((one) => one === status).length >= 3)
      const charged = (await db.outbox.admin.list()).filter(({ attempts, state }) => attempts > 0 || state === 'dead')
      expect(charged, `with ${status} nobody is charged`).toEqual([])
    }
    status = 204
    const listed = async (state: 'published' | 'dead') => (await db.outbox.admin.list({ states: [state] })).length
    await until('the others arrive', async () => (await listed('published')) === 50)
    // While others arrive, it is charged each time.
    await db.withTransaction((tx) =>
      db.outbox.enqueue(
        tx,
        Array.from({ length: 50 }, () => message()),
      ),
    )
    await until('it is dead', async () => {
      await db.withTransaction((tx) => db.outbox.enqueue(tx, [message()]))
      return (await listed('dead')) === 1
    })
    expect((await db.outbox.admin.list({ states: ['dead'] }))[0]!.lastError).toContain('responded with 409')
    recorder.stop()
    await relay.stop()
  })
})
