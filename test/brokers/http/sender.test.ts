import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, test } from 'vitest'
import { command, onPath } from '../../../scripts/services/files.ts'
import { type Outcome, setTopic } from '../../../src/adapter.ts'
import { type HttpSenderOptions, httpReceiver, httpSender, nodeListener } from '../../../src/brokers/http/index.ts'
import { delayOf } from '../../../src/brokers/http/request.ts'
import { Message, pauseAfter, type RawMessage } from '../../../src/core/index.ts'
import type { FailedOutcome } from '../../../src/flow/publisher.ts'
import { retryPolicy } from '../../../src/flow/retry-policy.ts'
import { event, Relay, Router } from '../../../src/index.ts'
import { memory } from '../../../src/memory/index.ts'
import { FakeClock, recordTelemetry } from '../../../src/testing/index.ts'
import { close, listen, message, NEVER, OTHER_SECRET, SECRET, sender, serve, serveReceiver, until } from './support.ts'

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

/** The same with a URL for each message. */
async function outcomeEach(status: number, headers: Record<string, string>) {
  await using site = await answering(status, headers)
  const [outcome] = await made(() => site.url).publish([message()], NEVER)
  return outcome!
}

describe('what an answer means', () => {
  test.each([200, 201, 202, 204, 299])('%i: it has arrived', async (status) => {
    expect(await outcomeOf(status)).toEqual({ kind: 'ok' })
  })

  test.each([413, 422, 431])('%i: refused for good', async (status) => {
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

  test.each([400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 414, 415, 421, 426, 451, 501, 505, 511])(
    '%i: what a deploy can mend is the destination’s',
    async (status) => {
      await using site = await answering(status)
      // One at a time, so that the second goes out after the answer to the first.
      const to = made(site.url, { concurrency: 1 })
      const outcomes = await to.publish([message(), message(), message()], NEVER)
      expect(outcomes.map(({ kind }) => kind)).toEqual(['down', 'down', 'down'])
      expect(site.requests.length, 'it may be the message, so the others are tried').toBe(3)
      // With a URL for each message it concerns that one alone; an endpoint that is gone is gone.
      const [own] = await made(() => site.url).publish([message()], NEVER)
      expect(own!.kind).toBe(status === 410 ? 'rejected' : 'failed')
    },
  )

  test.each([408, 425, 500, 507, 599])('%i: this message, perhaps later', async (status) => {
    const outcome = await outcomeOf(status)
    expect(outcome.kind).toBe('failed')
    expect(pauseAfter((outcome as { error: unknown }).error)).toBe(0)
  })

  // From 520 on they are those of networks of delivery, which did not reach the server behind them.
  test.each([429, 502, 503, 504, 520, 521, 522, 526, 530])(
    '%i: the destination, and no message is to blame',
    async (status) => {
      expect((await outcomeOf(status)).kind).toBe('down')
    },
  )

  test.each([429, 502, 503, 504, 522])(
    '%i with a URL for each message: that message, so that none waits for another',
    async (status) => {
      await using site = await answering(status, { 'retry-after': '7' })
      const [outcome] = await made(() => site.url).publish([message()], NEVER)
      expect(outcome).toMatchObject({ kind: 'failed', error: { after: 7000 } })
      expect(retryIn(outcome!, 1)).toBe(7000)
    },
  )

  /** When a relay sends it again, after so many attempts before this one. */
  const retryIn = (outcome: Outcome, attempts: number) => {
    const settlement = retryPolicy('test', { backoff: { jitter: 0 } }).decide(attempts, outcome as FailedOutcome)
    return settlement.kind === 'retry' ? settlement.after : settlement.kind
  }

  test('a failed message comes again when the answer says, or later', async () => {
    const asked = async (...[header, options]: [string, Partial<HttpSenderOptions>?]) => {
      const outcome = await outcomeOf(500, { 'retry-after': header }, options)
      expect(outcome.kind).toBe('failed')
      return [0, 4, 20].map((attempts) => retryIn(outcome, attempts))
    }
    expect(await asked('30')).toEqual([30_000, 30_000, 60_000])
    expect(await asked('99999999')).toEqual([3_600_000, 3_600_000, 3_600_000])
    expect(await asked('60', { longestRetryAfter: '5s' })).toEqual([5000, 16_000, 60_000])
  })

  test.each(['0', '1', 'Wed, 21 Oct 2015 07:28:00 GMT'])(
    'an answer that always says Retry-After: %s does not spend all attempts at once',
    async (header) => {
      for (const outcome of [
        await outcomeOf(500, { 'retry-after': header }),
        await outcomeEach(503, { 'retry-after': header }),
      ]) {
        expect(outcome.kind).toBe('failed')
        expect([0, 1, 5, 20].map((attempts) => retryIn(outcome, attempts))).toEqual([1000, 2000, 32_000, 60_000])
      }
    },
  )

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
    const early = await to.publish([message(), message()], NEVER)
    expect(early).toMatchObject(early.map(() => ({ kind: 'down', untried: true })))
    expect(site.requests.length).toBe(1)
    await clock.advance(20_000)
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('ok')
  })

  test.each([
    [503, '3600', 60_000],
    [429, '3600', 3_600_000],
    [429, '0', 1000],
    [429, undefined, 1000],
  ])('%i with a Retry-After of %s s: asked again after %i ms', async (status, header, pause) => {
    let answer = status
    await using site = await answering(() => answer, header === undefined ? {} : { 'retry-after': header })
    const clock = new FakeClock()
    const to = made(site.url, { clock })
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
    answer = 204
    await clock.advance(pause - 1)
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
    expect(site.requests.length).toBe(1)
    await clock.advance(1)
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('ok')
  })

  test('once the destination is away, the rest of a call is not tried', async () => {
    await using site = await answering(503)
    const many = Array.from({ length: 200 }, () => message())
    const outcomes = await made(site.url, { concurrency: 2 }).publish(many, NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(many.map(() => 'down'))
    expect(site.requests.length).toBeLessThanOrEqual(4)
    const tried = outcomes.filter((outcome) => outcome.kind === 'down' && outcome.untried !== true)
    expect(tried.length, 'who was not sent is not suspected').toBe(site.requests.length)
  })

  test('of several that ask for a pause at once the longest counts', async () => {
    const waiting: (() => void)[] = []
    await using site = await serve((request, response) => {
      request.resume()
      const before = waiting.length
      waiting.push(() => response.writeHead(429, before === 0 ? { 'retry-after': '60' } : {}).end())
      if (before === 2) response.writeHead(204).end()
    })
    const clock = new FakeClock()
    const to = made(site.url, { clock })
    const publishing = [to.publish([message()], NEVER), to.publish([message()], NEVER)]
    await until('both are there', () => waiting.length === 2)
    waiting[0]!()
    await Promise.race(publishing)
    waiting[1]!()
    expect((await Promise.all(publishing)).map(([outcome]) => outcome!.kind)).toEqual(['down', 'down'])
    await clock.advance(59_999)
    expect(await to.publish([message()], NEVER)).toMatchObject([{ kind: 'down', untried: true }])
    expect(waiting.length).toBe(2)
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

  test('an answer whose body never ends holds its slot for a moment only; its status stands', async () => {
    await using site = await serve((request, response) => {
      request.resume()
      response.writeHead(200).write('and so')
    })
    const clock = new FakeClock()
    let outcomes: readonly Outcome[] | undefined
    made(site.url, { clock, timeout: '1d', concurrency: 1 })
      .publish([message(), message()], NEVER)
      .then((all) => (outcomes = all))
    await until('both were answered', async () => {
      await clock.advance(100)
      return outcomes !== undefined
    })
    expect(outcomes).toEqual([{ kind: 'ok' }, { kind: 'ok' }])
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

  test.skipIf(onPath('openssl') === null)(
    'a certificate that nobody vouches for, or of another name: down, and the cause says so; one that is known: sent',
    async () => {
      const folder = mkdtempSync(join(tmpdir(), 'waybill-http-'))
      const [key, certificate] = [join(folder, 'key.pem'), join(folder, 'certificate.pem')]
      const made1 = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', certificate]
      await command('openssl', [...made1, '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'])
      const ca = readFileSync(certificate, 'utf8')
      const server = createSecureServer({ key: readFileSync(key), cert: ca }, (_, response) =>
        response.writeHead(204).end(),
      )
      rmSync(folder, { recursive: true })
      const port = await listen(server)
      open.push({ close: () => close(server) })
      const sent = async (host: string, options: Partial<HttpSenderOptions> = {}) => {
        const [outcome] = await made(`https://${host}:${port}/`, options).publish([message()], NEVER)
        return [outcome!.kind, ((outcome as { error?: Error }).error?.cause as { code?: string } | undefined)?.code]
      }
      expect(await sent('localhost')).toEqual(['down', 'DEPTH_ZERO_SELF_SIGNED_CERT'])
      expect(await sent('127.0.0.1', { tls: { ca } })).toEqual(['down', 'ERR_TLS_CERT_ALTNAME_INVALID'])
      expect(await sent('localhost', { tls: { ca } })).toEqual(['ok', undefined])
    },
  )

  test('TLS where there is none: down', async () => {
    await using site = await answering(204)
    const to = made(site.url.replace('http:', 'https:'))
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
  })

  test.each([
    ['one URL', false],
    ['a URL for each message', true],
  ])('its signal ends a publish at once, and no message is to blame for that: %s', async (_, each) => {
    let stop = () => {}
    await using site = await serve(() => stop())
    const stopped = new AbortController()
    stop = () => stopped.abort(new Error('enough'))
    const to = made(each ? () => site.url : site.url, { concurrency: 2, timeout: '60s' })
    const outcomes = await to.publish([message(), message(), message()], stopped.signal)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['down', 'down', 'down'])
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
    await made(url, { headers: { Authorization: 'Bearer x', 'WebHook-Request-Origin': 'shop.example' } }).publish(
      [sent],
      NEVER,
    )
    expect(seen).toEqual(['orders'])
    const [{ request }] = site.requests as [(typeof site.requests)[0]]
    expect(request.url).toBe('/order.placed')
    expect(request.headers).toMatchObject({ authorization: 'Bearer x', 'webhook-request-origin': 'shop.example' })
  })

  test('a URL function that answers nonsense fails that message only, and a deploy may mend it', async () => {
    await using site = await answering(204)
    const url = (one: RawMessage) => (one.type === 'bad' ? 'ftp://x/' : site.url)
    const outcomes = await made(url).publish([message('{}', { type: 'bad' }), message()], NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['failed', 'ok'])
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

test('without a word about it ten requests go out at once, and each is given up after 15 s', async () => {
  let hits = 0
  await using site = await serve(() => void hits++)
  const clock = new FakeClock()
  let outcomes: readonly Outcome[] | undefined
  const publishing = made(site.url, { clock })
    .publish(
      Array.from({ length: 30 }, () => message()),
      NEVER,
    )
    .then((all) => (outcomes = all))
  await until('they are there', () => hits >= 10)
  await clock.advance(14_999)
  expect([hits, outcomes]).toEqual([10, undefined])
  await clock.advance(1)
  expect((await publishing).every(({ kind }) => kind === 'down')).toBe(true)
  expect(hits).toBe(10)
})

describe('options of a sender', () => {
  const url = 'https://hooks.example/'
  test.each([
    [{ url: 'nonsense' }, /no URL/],
    [{ url: 'ftp://x/' }, /ftp: is not allowed/],
    [{ url: 'https://user:secret@hooks.example/' }, /credentials in the URL/],
    [{ url: undefined }, /undefined is not allowed/],
    [{ url, secrets: undefined }, /give either secrets/],
    [{ url, unsigned: true }, /not both/],
    [{ url, secretes: 'x' }, /did you mean "secrets"/],
    [{ url, mode: 'batch' }, /Allowed: binary, structured/],
    [{ url, timeout: '15' }, /not a duration/],
    [{ url, concurrency: 0 }, /at least 1/],
    [{ url, headers: { 'ce-id': 'x' } }, /cannot be set/],
    [{ url, headers: { 'webhook-id': 'x' } }, /cannot be set/],
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
    for (status of [404, 301, 405, 400, 415]) {
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

  test('a receiver with another secret costs no event: 200 of 200 arrive once it has ours', async () => {
    const receivers = [OTHER_SECRET, SECRET].map((secret) => httpReceiver({ secrets: secret }))
    const listeners = receivers.map((receiver) => nodeListener(receiver))
    let current = 0
    let refused = 0
    await using site = await serve((request, response) => {
      if (current === 0) refused++
      listeners[current]!(request, response)
    })
    const handled = new Set<string>()
    const router = new Router('hooks').on(event('http.tested'), ({ id }) => void handled.add(id))
    const consumers = receivers.map((receiver) => router.consume(receiver))
    for (const consumer of consumers) await consumer.start()
    const db = memory()
    const relay = new Relay({ from: db.outbox, to: made(site.url), outage: { min: 5, max: 20 }, poll: '10ms' })
    const events = Array.from({ length: 200 }, () => message())
    await db.withTransaction((tx) => db.outbox.enqueue(tx, events))
    await relay.start()
    await until('it was refused again and again', () => refused > 205)
    const listed = await db.outbox.admin.list({}, { limit: 1000 })
    expect(listed.length).toBe(200)
    expect(listed.filter(({ attempts, state }) => attempts > 0 || state === 'dead')).toEqual([])
    expect(handled.size).toBe(0)
    current = 1
    await until('all arrived', () => handled.size === 200)
    await relay.stop()
    for (const worker of [...receivers, ...consumers]) await worker.stop()
  })
})
