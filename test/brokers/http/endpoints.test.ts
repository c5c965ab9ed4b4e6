import type { Socket } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import type { HttpSenderOptions } from '../../../src/brokers/http/index.ts'
import type { RawMessage } from '../../../src/core/index.ts'
import { Relay } from '../../../src/index.ts'
import { memory } from '../../../src/memory/index.ts'
import { FakeClock } from '../../../src/testing/index.ts'
import { message, NEVER, sender, serve, until } from './support.ts'

const open: { close(): Promise<void> }[] = []
afterEach(async () => {
  for (const one of open.splice(0)) await one.close()
})

async function serving(listener: Parameters<typeof serve>[0]) {
  const site = await serve(listener)
  open.push({ close: () => site[Symbol.asyncDispose]() })
  return site
}

/** Servers by name; a message goes to the one that its type begins with, under the rest of it as the path. */
async function world(options: Partial<HttpSenderOptions> = {}) {
  const hits: string[] = []
  const hung = { now: true }
  const hanging = await serving((request, response) => {
    request.resume()
    hits.push(request.url!)
    if (!hung.now) response.writeHead(204).end()
  })
  const sound = await serving((request, response) => {
    request.resume()
    hits.push(request.url!)
    response.writeHead(204).end()
  })
  const url = ({ type }: RawMessage) => {
    const site = type.startsWith('hung') ? hanging : sound
    return `http://127.0.0.1:${site.port}/${type}?with=query`
  }
  const to = sender(url, { timeout: '60s', ...options })
  open.push(to)
  const of = (type: string) => hits.filter((path) => path === `/${type}?with=query`).length
  return { to, hung, hits: of }
}

const of = (type: string, count = 1) => Array.from({ length: count }, () => message('{}', { type }))
const kinds = (outcomes: readonly { kind: string }[]) => [...new Set(outcomes.map(({ kind }) => kind))]

describe('a URL for each message', () => {
  test('an endpoint that hangs has half of the slots at most, and others go out beside it', async () => {
    const it = await world({ concurrency: 4 })
    const stop = new AbortController()
    const waiting = it.to.publish(of('hung', 20), stop.signal)
    await until('it has what it may have', () => it.hits('hung') === 2)
    expect(kinds(await it.to.publish(of('sound', 10), NEVER))).toEqual(['ok'])
    expect(it.hits('hung')).toBe(2)
    stop.abort(new Error('enough'))
    expect(kinds(await waiting)).toEqual(['down'])
  })

  test('within one call it is not asked for each message in turn: the rest fail with those that were not answered', async () => {
    const clock = new FakeClock()
    const it = await world({ concurrency: 4, timeout: '5s', clock })
    const publishing = it.to.publish([...of('hung', 50), ...of('sound', 5)], NEVER)
    await until('they are there', () => it.hits('hung') === 2)
    // A host's slots are given in the order of asking, so the five were answered before the last of these.
    expect(kinds(await it.to.publish(of('sound', 20), NEVER))).toEqual(['ok'])
    await clock.advance(5000)
    const outcomes = await publishing
    expect(kinds(outcomes.slice(0, 50))).toEqual(['failed'])
    expect(kinds(outcomes.slice(50))).toEqual(['ok'])
    expect(it.hits('hung')).toBe(2)
  })

  test('when it is silent one message asks again after a pause; when that is answered the others follow', async () => {
    const clock = new FakeClock()
    const it = await world({ concurrency: 4, timeout: '5s', clock })
    const first = it.to.publish(of('hung', 3), NEVER)
    await until('they are there', () => it.hits('hung') === 2)
    await clock.advance(5000)
    expect(kinds(await first)).toEqual(['failed'])
    expect(kinds(await it.to.publish(of('hung', 3), NEVER)), 'at once').toEqual(['failed'])
    expect(it.hits('hung')).toBe(2)
    await clock.advance(1000)
    const again = it.to.publish(of('hung', 3), NEVER)
    await until('one asks', () => it.hits('hung') === 3)
    await clock.advance(5000)
    expect(kinds(await again)).toEqual(['failed'])
    expect(it.hits('hung'), 'only one').toBe(3)
    await clock.advance(1000)
    expect(kinds(await it.to.publish(of('hung', 3), NEVER)), 'the pause doubles').toEqual(['failed'])
    expect(it.hits('hung')).toBe(3)
    await clock.advance(1000)
    it.hung.now = false
    expect(kinds(await it.to.publish(of('hung', 3), NEVER))).toEqual(['ok'])
    expect(it.hits('hung')).toBe(6)
  })

  test('an answer between, whatever it is, ends the count: one slow message silences no endpoint', async () => {
    const clock = new FakeClock()
    const it = await world({ concurrency: 4, timeout: '5s', clock })
    for (let round = 1; round <= 4; round++) {
      it.hung.now = true
      const slow = it.to.publish(of('hung'), NEVER)
      await until('it is there', () => it.hits('hung') === round * 2 - 1)
      await clock.advance(5000)
      expect(kinds(await slow)).toEqual(['failed'])
      it.hung.now = false
      expect(kinds(await it.to.publish(of('hung'), NEVER))).toEqual(['ok'])
    }
  })

  test('many that are silent have half of the slots together, also on hosts of their own', async () => {
    const clock = new FakeClock()
    const hits: number[] = []
    const hosts = await Promise.all(
      Array.from({ length: 7 }, () => serving((request) => void hits.push(request.socket.localPort!))),
    )
    const sound = await serving((_, response) => response.writeHead(204).end())
    const url = ({ type }: RawMessage) => hosts[Number(type)]?.url ?? sound.url
    const to = sender(url, { concurrency: 4, timeout: '5s', clock })
    open.push(to)
    const silence = async (host: number) => {
      const before = hits.length
      const publishing = to.publish(of(String(host), 2), NEVER)
      await until('they are there', () => hits.length === before + 2)
      await clock.advance(5000)
      expect(kinds(await publishing)).toEqual(['failed'])
    }
    for (let host = 0; host < 6; host++) await silence(host)
    await clock.advance(30_000)
    await silence(6)
    const before = hits.length
    const stop = new AbortController()
    const asking = Array.from({ length: 6 }, (_, host) => to.publish(of(String(host)), stop.signal))
    await until('some ask', () => hits.length >= before + 2)
    expect(kinds(await to.publish(of('sound', 20), NEVER))).toEqual(['ok'])
    expect(hits.length).toBe(before + 2)
    // Not to be asked yet: its messages need no slot, and wait for nobody.
    expect(kinds(await to.publish(of('6', 3), NEVER))).toEqual(['failed'])
    stop.abort(new Error('enough'))
    await Promise.all(asking)
  })

  test('a call that is ended says at once what has arrived, though another has all slots of its host', async () => {
    const held: (() => void)[] = []
    const site = await serving((request, response) => {
      request.resume()
      const answer = () => void response.writeHead(204).end()
      if (request.url === '/held') held.push(answer)
      else answer()
    })
    // Two for each host.
    const to = sender(({ type }: RawMessage) => new URL(type, site.url), { concurrency: 4, timeout: '60s' })
    open.push(to)
    const [other, stop] = [new AbortController(), new AbortController()]
    const waiting = to.publish(of('/held', 3), other.signal)
    await until('it has both', () => held.length === 2)
    const publishing = to.publish(of('/sound', 4), stop.signal)
    // Of the slot that is free now one of the others takes two turns, until it is that of the third.
    held[0]!()
    await until('it has both again', () => held.length === 3)
    stop.abort(new Error('the time is up'))
    const said = await Promise.race([publishing, new Promise<[]>((resolve) => setImmediate(resolve, []))])
    other.abort(new Error('enough'))
    await waiting
    expect(said.map(({ kind }) => kind)).toEqual(['ok', 'ok', 'down', 'down'])
  })

  test('of all hosts together as many connections are kept as requests may go out at once; they are used again', async () => {
    const opened: Socket[] = []
    const there = () => opened.filter(({ destroyed }) => !destroyed).length
    const hosts = await Promise.all(
      Array.from({ length: 12 }, async () => {
        const site = await serving((request, response) => {
          request.resume()
          response.writeHead(204).end()
        })
        // They never close what nobody uses.
        site.server.keepAliveTimeout = 0
        site.server.on('connection', (socket) => opened.push(socket))
        return site
      }),
    )
    const to = sender(({ type }: RawMessage) => hosts[Number(type)]!.url, { concurrency: 4 })
    open.push(to)
    const all = hosts.flatMap((_, host) => of(String(host), 3))
    expect(kinds(await to.publish(all, NEVER))).toEqual(['ok'])
    await until('the others are closed', () => there() <= 4)
    expect(there()).toBe(4)
    const before = opened.length
    for (let i = 0; i < 5; i++) expect(kinds(await to.publish(of('11', 2), NEVER))).toEqual(['ok'])
    expect(opened.length - before, 'ten requests').toBeLessThanOrEqual(2)
    await until('no more are kept', () => there() <= 4)
  })

  test('under a relay: what waits for an endpoint that hangs holds up nobody else', async () => {
    const it = await world({ timeout: '3s' })
    const db = memory()
    const relay = new Relay({ from: db.outbox, to: it.to, timeout: '10s', poll: '10ms' })
    const [hung, sound] = [of('hung', 300), of('sound', 100)]
    await db.withTransaction((tx) => db.outbox.enqueue(tx, [...hung, ...sound]))
    await relay.start()
    const published = async () => (await db.outbox.admin.list({ states: ['published'] }, { limit: 1000 })).length
    await until('the others arrived', async () => (await published()) === 100)
    expect(it.hits('sound'), 'each once').toBe(100)
    expect(it.hits('hung'), 'it was asked a few times, not for each').toBeLessThan(50)
    await relay.stop()
  })
})
