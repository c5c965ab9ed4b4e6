import { afterAll, describe, expect, test } from 'vitest'
import {
  crashPoints,
  everyPointHit,
  publisherPoints,
  runUntilCrash,
  type ScriptResult,
  sourcePoints,
} from '../../../src/testing/index.ts'
import { script } from './scripts.ts'
import { BROKER_TABLE, sqlBroker } from './sql-broker.ts'
import { type World, world } from './support.ts'
import { effectProblems } from './verify.ts'

const enqueuePoints = crashPoints([
  'enqueue.begun',
  'enqueue.before-enqueue',
  'enqueue.after-enqueue',
  'enqueue.ended',
] as const)
const relayPoints = crashPoints([...sourcePoints('relay'), ...publisherPoints('relay')])
const consumerPoints = crashPoints([...sourcePoints('consumer'), 'consumer.before-effect', 'consumer.after-effect'])

const results: ScriptResult[] = []

async function inWorld(run: (t: World) => Promise<void>): Promise<void> {
  const t = await world()
  try {
    await t.pool.query(BROKER_TABLE)
    await run(t)
  } finally {
    await t.end()
  }
}

const consume = async (t: World, at = 'nowhere') =>
  runUntilCrash({ script: await script('consumer-child'), env: { URL: t.database.url }, at })

describe('a process killed', { timeout: 120_000, concurrent: true }, () => {
  test.each(enqueuePoints.flatMap((point) => [`${point}#1`, `${point}#2`]))(
    'at %s while it enqueues: with the commit everything, without it nothing',
    (at) =>
      inWorld(async (t) => {
        const script = new URL('./enqueue-child.ts', import.meta.url)
        const result = await runUntilCrash({ script, env: { URL: t.database.url }, at })
        expect(result).toMatchObject({ crashed: true })
        results.push(result)
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
        const relay = { reader, lease: '500ms', batch: 4, maxBatch: 4 } as const
        const job = { points: 'relay', broker: t.database.url, relay }
        const result = await (await t.child(job, { at: `${at}#2` })).finished
        expect(result).toMatchObject({ crashed: true })
        results.push(result)
        const second = t.relay({ ...relay, inner: sqlBroker(t.database.url) })
        await second.start()
        await t.settled()
        await second.stop()
        // What had gone out and was not settled may go out again; nothing else.
        const unknown = at === 'relay.before-settle' || at === 'relay.after-publish' ? 8 : 4
        const ordered = reader === 'owner'
        expect(await t.problems({ ordered, duplicates: unknown, charged: !ordered })).toEqual([])
        expect(await consume(t)).toMatchObject({ code: 0 })
        expect(await effectProblems(t.pool)).toEqual([])
      }),
  )

  test.each(consumerPoints)('at %s while it consumes: every effect happens once', (at) =>
    inWorld(async (t) => {
      await t.fill(4, 2)
      await t.relay({ inner: sqlBroker(t.database.url) }).runOnce()
      const result = await consume(t, `${at}#1`)
      expect(result).toMatchObject({ crashed: true })
      results.push(result)
      const again = await consume(t)
      expect(again).toMatchObject({ code: 0 })
      expect(await effectProblems(t.pool)).toEqual([])
      const { rows } = await t.pool.query('SELECT count(*)::int AS left FROM broker')
      expect(rows).toEqual([{ left: 0 }])
    }),
  )

  afterAll(() => {
    // A test chosen by name does not reach every point.
    if (results.length === 8 + 10 + 5) everyPointHit([...enqueuePoints, ...relayPoints, ...consumerPoints], results)
  })
})
