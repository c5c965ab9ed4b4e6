import { describe, expect, test } from 'vitest'
import { Relay } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import {
  collector,
  crashPoints,
  everyPointHit,
  publisherPoints,
  runUntilCrash,
  sourcePoints,
} from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { scale } from '../../support/scale.ts'
import { BILLING } from './business.ts'
import { BROKER_TABLE, sqlBroker } from './sql-broker.ts'
import { type World, world } from './support.ts'
import { effectProblems, outputProblems } from './verify.ts'

const enqueuePoints = crashPoints([
  'enqueue.begun',
  'enqueue.before-enqueue',
  'enqueue.after-enqueue',
  'enqueue.ended',
] as const)
const relayPoints = crashPoints([...sourcePoints('relay'), ...publisherPoints('relay')])
const consumerPoints = crashPoints([
  ...sourcePoints('consumer'),
  'consumer.before-effect',
  'consumer.after-effect',
  'consumer.before-outputs',
  'consumer.after-outputs',
  'consumer.after-commit',
])
/** Before the handler, after it and before the commit, after the commit and before the ack. */
const around = ['consumer.before-effect', 'consumer.after-outputs', 'consumer.after-commit'] as const
const consumerPointsOfOutbox = scale<readonly string[]>({ test: around, full: consumerPoints, torture: consumerPoints })

async function inWorld(run: (t: World) => Promise<void>): Promise<void> {
  const t = await world()
  try {
    await t.pool.query(BROKER_TABLE)
    await postgres({ pool: t.pool, ...BILLING }).migrate()
    await run(t)
  } finally {
    await t.end()
  }
}

const enqueue = async (t: World, at = 'nowhere') =>
  runUntilCrash({ script: bundled(new URL('./enqueue-child.ts', import.meta.url)), env: { URL: t.database.url }, at })

const consume = async (t: World, from: 'broker' | 'outbox', at = 'nowhere') =>
  runUntilCrash({
    script: bundled(new URL('./consumer-child.ts', import.meta.url)),
    env: { URL: t.database.url, FROM: from },
    at,
  })

/** Each effect once, and what it caused once in the outbox, from where a relay sends it: once. */
async function consumedOnce(t: World): Promise<void> {
  expect(await effectProblems(t.pool)).toEqual([])
  expect(await outputProblems(t.pool)).toEqual([])
  const sink = collector()
  const { outbox } = postgres({ pool: t.pool, ...BILLING })
  const relay = new Relay({ from: outbox, to: sink })
  while ((await relay.runOnce()).taken > 0);
  await relay.stop()
  const { rows } = await t.pool.query('SELECT count(*)::int AS n FROM ledger')
  expect(sink.messages).toHaveLength(2 * rows[0].n)
}

describe('a process killed', { timeout: 120_000, concurrent: true }, () => {
  test.each(enqueuePoints.flatMap((point) => [`${point}#1`, `${point}#2`]))(
    'at %s while it enqueues: with the commit everything, without it nothing',
    (at) =>
      inWorld(async (t) => {
        const result = await enqueue(t, at)
        expect(result).toMatchObject({ crashed: true })
        const committed = at === 'enqueue.ended#1' || at.endsWith('#2') ? 1 : 0
        const { rows } = await t.pool.query(
          'SELECT (SELECT count(*)::int FROM ledger) AS ledger, (SELECT count(*)::int FROM outbox) AS outbox',
        )
        expect(rows).toEqual([{ ledger: committed, outbox: committed }])
        const relay = t.relay()
        await relay.runOnce()
        expect(await t.problems()).toEqual([])
      }),
  )

  test.each((['owner', 'lease'] as const).flatMap((reader) => relayPoints.map((point) => [point, reader] as const)))(
    'at %s, reading as %s: nothing is lost, and after the inbox nothing is repeated',
    (at, reader) =>
      inWorld(async (t) => {
        await t.fill(10, 3)
        const relay = { reader, lease: '1s', batch: 4, maxBatch: 4 } as const
        const job = { points: 'relay', broker: t.database.url, relay }
        const result = await (await t.child(job, { at: `${at}#2` })).finished
        expect(result).toMatchObject({ crashed: true })
        // Its own lease is longer: on a busy machine one that runs out would be one more that nobody settled.
        const second = t.relay({ ...relay, lease: '30s', inner: sqlBroker(t.database.url) })
        await second.start()
        await t.settled()
        await second.stop()
        // What had gone out and was not settled may go out again; nothing else.
        const unknown = at === 'relay.before-settle' || at === 'relay.after-publish' ? 8 : 4
        const ordered = reader === 'owner'
        expect(await t.problems({ ordered, duplicates: unknown, charged: !ordered })).toEqual([])
        expect(await consume(t, 'broker')).toMatchObject({ code: 0 })
        await consumedOnce(t)
      }),
  )

  test.each(consumerPoints)('at %s while it consumes: every effect happens once, and so do its outputs', (at) =>
    inWorld(async (t) => {
      await t.fill(4, 2)
      await t.relay({ inner: sqlBroker(t.database.url) }).runOnce()
      expect(await consume(t, 'broker', `${at}#1`)).toMatchObject({ crashed: true })
      expect(await consume(t, 'broker')).toMatchObject({ code: 0 })
      await consumedOnce(t)
      const { rows } = await t.pool.query('SELECT count(*)::int AS left FROM broker')
      expect(rows).toEqual([{ left: 0 }])
    }),
  )

  test.each(consumerPointsOfOutbox)(
    'at %s while it consumes an outbox: every effect happens once, and so do its outputs',
    (at) =>
      inWorld(async (t) => {
        await t.fill(4, 2)
        expect(await consume(t, 'outbox', `${at}#2`)).toMatchObject({ crashed: true })
        expect(await consume(t, 'outbox')).toMatchObject({ code: 0 })
        await consumedOnce(t)
        const { rows } = await t.pool.query('SELECT DISTINCT state FROM outbox')
        expect(rows).toEqual([{ state: 'published' }])
      }),
  )
})

/** Otherwise a point could be passed without being killed at, or be on the list and nowhere else. */
describe('a process that is left alone comes by every point, and by no other,', {
  timeout: 120_000,
  concurrent: true,
}, () => {
  test('when it enqueues', () =>
    inWorld(async (t) => {
      everyPointHit(enqueuePoints, [await enqueue(t)])
    }))

  test('when it relays', () =>
    inWorld(async (t) => {
      await t.fill(10, 3)
      const child = await t.child({ points: 'relay', relay: {} })
      await t.settled()
      child.kill('SIGTERM')
      everyPointHit(relayPoints, [await child.finished])
    }))

  test.each(['broker', 'outbox'] as const)('when it consumes from the %s', (from) =>
    inWorld(async (t) => {
      await t.fill(4, 2)
      if (from === 'broker') await t.relay({ inner: sqlBroker(t.database.url) }).runOnce()
      everyPointHit(consumerPoints, [await consume(t, from)])
    }),
  )
})
