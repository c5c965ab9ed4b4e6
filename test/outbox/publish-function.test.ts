import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { freePort } from '../../scripts/services/ports.ts'
import { STRUCTURED_TYPE, toStructured } from '../../src/cloudevents/index.ts'
import { type ErrorKind, errorSummary } from '../../src/core/index.ts'
import { event, Relay, type RelayOptions, RoutingRelay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { sink } from '../../src/pipes.ts'
import { recordTelemetry } from '../../src/testing/index.ts'

const Placed = event<{ n: number }>('order.placed')

function posting(url: string, timeout = 5000): RelayOptions['to'] {
  return async (message, signal) => {
    const headers = { 'content-type': STRUCTURED_TYPE }
    const late = AbortSignal.timeout(timeout)
    // `any` does not hold what it is made of: Node 20 may collect a timeout that has no listener, and it never fires.
    late.addEventListener('abort', () => {})
    const within = AbortSignal.any([signal, late])
    const response = await fetch(url, { method: 'POST', headers, body: toStructured(message), signal: within })
    if (!response.ok) throw new Error(`answered ${response.status}`)
  }
}

async function rounds(to: RelayOptions['to'], count: number, options: Partial<RelayOptions> = {}) {
  const db = memory()
  const telemetry = recordTelemetry(['flow.paused'])
  const twenty = Array.from({ length: 20 }, (_, n) => Placed({ n }))
  await db.withTransaction((tx) => db.outbox.enqueue(tx, twenty))
  const retry = { attempts: 3, backoff: { min: 0, jitter: 0 }, ...options.retry }
  const relay = new Relay({ from: db.outbox, to, ...options, retry })
  for (let round = 0; round < count; round++) await relay.runOnce()
  const { states } = await db.outbox.admin.stats()
  await relay.stop()
  telemetry.stop()
  const counts = { ready: states.ready.count, retrying: states.retrying.count, dead: states.dead.count }
  return { states: counts, paused: telemetry.of('flow.paused') }
}

test('an outage costs no event an attempt, and the reason says what could not be reached', async () => {
  const port = await freePort()
  const { states, paused } = await rounds(posting(`http://127.0.0.1:${port}`), 6)
  expect(states).toEqual({ ready: 20, retrying: 0, dead: 0 })
  const summary = `TypeError: fetch failed < Error [ECONNREFUSED]: connect ECONNREFUSED 127.0.0.1:${port}`
  expect(errorSummary(paused[0]?.error)).toBe(summary)
})

test('a name that does not resolve costs no event an attempt', async () => {
  const { states } = await rounds(posting('http://nowhere.invalid'), 6)
  expect(states).toEqual({ ready: 20, retrying: 0, dead: 0 })
})

test('a destination that does not answer in time costs no event an attempt', async () => {
  const server = createServer(() => {}).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const { port } = server.address() as AddressInfo
  try {
    const { states } = await rounds(posting(`http://127.0.0.1:${port}`, 50), 4)
    expect(states).toEqual({ ready: 20, retrying: 0, dead: 0 })
  } finally {
    server.closeAllConnections()
    server.close()
  }
})

test('what is not known is charged to the event', async () => {
  const { states } = await rounds(async () => Promise.reject(new Error('answered 500')), 4)
  expect(states).toEqual({ ready: 0, retrying: 0, dead: 20 })
})

test.each<[ErrorKind, object]>([
  ['permanent', { dead: 20, ready: 0 }],
  ['down', { dead: 0, ready: 20 }],
  ['transient', { dead: 0, retrying: 20 }],
])('classify of a relay decides about its plain function: %s', async (kind, expected) => {
  const to = async () => Promise.reject(new Error('says nothing'))
  expect((await rounds(to, 1, { retry: { classify: () => kind } })).states).toMatchObject(expected)
})

test('classify of a sink decides about one message', async () => {
  const publisher = sink(() => Promise.reject(new Error('says nothing')), { classify: () => 'permanent' })
  expect((await rounds(publisher, 30)).states).toMatchObject({ dead: 20 })
})

test('classify of a routing relay reaches each destination, and one of a destination goes before it', async () => {
  const db = memory({ outbox: { branches: ['shop', 'audit'] } })
  const to = async () => Promise.reject(new Error('says nothing'))
  const relay = new RoutingRelay({
    from: db.outbox,
    to: { shop: to, audit: { to, retry: { classify: () => 'down' } } },
    routes: { 'order.placed': ['shop', 'audit'] },
    retry: { classify: () => 'permanent' },
  })
  await db.withTransaction((tx) =>
    db.outbox.enqueue(tx, Placed({ n: 1 }, { id: '01890a5d-ac96-774b-bcce-b302099a8057' })),
  )
  await relay.runOnce()
  expect(await relay.states('01890a5d-ac96-774b-bcce-b302099a8057')).toEqual({ shop: 'dead', audit: 'ready' })
  await relay.stop()
})
