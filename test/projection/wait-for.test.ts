import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { type Message, Reject } from '../../src/index.ts'
import {
  ProjectionAdmin,
  projection,
  TOKEN_HEADER,
  tokenCookie,
  tokenFrom,
  tokenOf,
  tokenText,
  viewOf,
} from '../../src/projection/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { changed, created, ListLog, orders, type World, world } from './support.ts'

describeWith(['postgres'], 'reading one’s own writes', () => {
  let at: World
  beforeEach(async () => {
    at = await world('postgres', { outbox: { log: true } })
  })
  afterEach(() => at.end())

  const write = async (...events: Message[]) => {
    const receipts = await at.db.withTransaction((tx) => at.db.outbox.enqueue(tx, events))
    return at.db.log.token(receipts)
  }

  test('reached: in the projector’s own process, and from another place, when the row is there', async () => {
    const view = orders()
    const projector = await at.projector(at.db.log, [view], { poll: '10s' }).start()
    const elsewhere = viewOf(at.db, view)
    await eventually('it has been built', async () => (await at.db.projections.load(view))?.builtAt)
    for (let n = 0; n < 20; n++) {
      const token = await write(created(`o${n}`))
      const place = n % 2 === 0 ? projector.view(view) : elsewhere
      expect(await place.waitFor(token, { timeout: '10s' })).toEqual({ answer: 'reached' })
      expect((await at.rows()).map(({ order_id }) => order_id)).toContain(`o${n}`)
    }
  })

  test('unknown while it never ran; building while it reads what was there before; stalled when nobody runs it', async () => {
    const view = orders()
    const place = viewOf(at.db, view)
    const token = await write(created('o1'))
    expect(await place.waitFor(token, { timeout: '1s' })).toMatchObject({
      answer: 'unknown',
      reason: expect.stringContaining('never run'),
    })
    const { incarnation } = await at.db.log.head()
    await at.db.projections.open(view, { id: at.db.log.id, incarnation }, '0', 0n)
    expect(await place.waitFor(token, { timeout: '1s' })).toEqual({ answer: 'building' })
    await at.pool.query('DELETE FROM projections')
    const projector = at.projector(at.db.log, [view])
    await projector.runOnce()
    expect(await place.waitFor(token, { timeout: 0 })).toEqual({ answer: 'reached' })
    await projector.stop()
    const later = await write(created('o2'))
    expect(await place.waitFor(later, { timeout: 50 })).toEqual({
      answer: 'stalled',
      reason: 'nobody runs this projection',
    })
  })

  test('building, and not unknown, when somebody has just begun to run it', async () => {
    const view = orders()
    const token = await write(created('o1'))
    const projector = at.projector(at.db.log, [view])
    // Its first round waits for a table: there is no checkpoint yet.
    const locked = await at.pool.connect()
    await locked.query('BEGIN; LOCK TABLE projections IN SHARE MODE')
    try {
      await projector.start()
      expect(await projector.view(view).waitFor(token, { timeout: 0 })).toEqual({ answer: 'building' })
      const elsewhere = () => viewOf(at.db, view).waitFor(token, { timeout: 0 })
      await eventually('another process sees its owner', async () => (await elsewhere()).answer === 'building')
    } finally {
      await locked.query('COMMIT')
      locked.release()
    }
    await eventually('it is there', async () => (await projector.view(view).waitFor(token)).answer === 'reached')
  })

  test('stalled, and not building, while it cannot begin: the reason is there, and says which statement it was', async () => {
    const view = projection('bad', {
      version: 1,
      table: 'bad',
      key: 'id',
      create: (t) => [`CREATE TABL ${t} (id text)`],
    })
    const projector = await at.projector(at.db.log, [view]).start()
    const token = await write(created('o1'))
    const refused = /INVALID_VIEW.*statement 1 of the projection's `create` is refused/
    let answer: unknown
    await eventually('it says why', async () => {
      const said = await projector.view(view).waitFor(token, { timeout: 0 })
      answer = said
      return said.answer === 'stalled'
    })
    expect(answer).toEqual({ answer: 'stalled', reason: expect.stringMatching(refused) })
  })

  test('stalled, and not building, while it fails before it has caught up', async () => {
    const view = orders()
    const { incarnation } = await at.db.log.head()
    await at.db.projections.open(view, { id: at.db.log.id, incarnation }, '0', 0n)
    const token = await write(created('o1'))
    await at.pool.query(`UPDATE projections SET problem = 'no answer'`)
    expect(await viewOf(at.db, view).waitFor(token, { timeout: 50 })).toEqual({
      answer: 'stalled',
      reason: 'no answer',
    })
  })

  test('a signal ends the waiting, also one that was over before', async () => {
    const view = orders()
    await at.projector(at.db.log, [view]).runOnce()
    const token = await write(created('o1'))
    const later = new AbortController()
    for (const signal of [AbortSignal.abort(), later.signal]) {
      const answer = viewOf(at.db, view).waitFor(token, { timeout: '10m', signal })
      later.abort()
      expect(await answer).toMatchObject({ answer: 'timeout' })
    }
  })

  test('many who wait elsewhere share one look', async () => {
    const view = orders()
    await at.projector(at.db.log, [view]).runOnce()
    const token = await write(created('o1'))
    const looks = vi.spyOn(at.db.projections, 'look')
    const over = new AbortController()
    const waiting = Array.from({ length: 20 }, () =>
      viewOf(at.db, view).waitFor(token, { timeout: '10m', signal: over.signal }),
    )
    const sizes = () => looks.mock.calls.map(([asked]) => asked.length)
    await eventually('all are looked at together', () => sizes().filter((size) => size === 20).length >= 3)
    // Each has looked once when it began. From then on it is one look for all.
    expect(new Set(sizes().slice(sizes().indexOf(20)))).toEqual(new Set([20]))
    over.abort()
    await Promise.all(waiting)
    looks.mockRestore()
  })

  test('those who wait elsewhere are woken by a projector of their process, and no time passes', async () => {
    const view = orders()
    const projector = at.projector(at.db.log, [view])
    await projector.runOnce()
    const token = await write(created('o1'))
    const looks = vi.spyOn(at.db.projections, 'look')
    const clock = new FakeClock()
    const waits = Array.from({ length: 3 }, () => viewOf(at.db, view, { clock }).waitFor(token, { timeout: '10m' }))
    await eventually('they have looked, and wait', () => looks.mock.calls.length >= 2)
    await projector.runOnce()
    // Nothing advances their clock.
    expect(await Promise.all(waits)).toEqual(Array(3).fill({ answer: 'reached' }))
    looks.mockRestore()
  })

  test.each([
    ['5s', 5000],
    [0, 1000],
  ] as const)(
    'a database that does not answer keeps nobody longer than the time-out and a second: %s',
    async (timeout, first) => {
      const view = orders()
      await at.projector(at.db.log, [view]).runOnce()
      const token = await write(created('o1'))
      const locked = await at.pool.connect()
      await locked.query('BEGIN; LOCK TABLE projections')
      const clock = new FakeClock()
      const waits = viewOf(at.db, view, { clock }).waitFor(token, { timeout })
      try {
        await clock.settle()
        await clock.advance(first)
        await clock.advance(1000)
        expect(await waits).toEqual({ answer: 'unknown', reason: expect.stringContaining('no answer within 1000 ms') })
      } finally {
        await locked.query('COMMIT')
        locked.release()
      }
    },
  )

  test('a database that answers only at the end says the same as one that did at once', async () => {
    const view = orders()
    await at.projector(at.db.log, [view]).runOnce()
    const locked = await at.pool.connect()
    await locked.query('BEGIN; LOCK TABLE projections')
    const clock = new FakeClock()
    const place = viewOf(at.db, view, { clock })
    const foreign = place.waitFor(new ListLog('other').token('1'), { timeout: '5s' }).catch((error) => error)
    await clock.settle()
    const looks = vi.spyOn(at.db.projections, 'look')
    await clock.advance(5000)
    await eventually('its last look', () => looks.mock.calls.length > 0)
    await locked.query('COMMIT')
    locked.release()
    looks.mockRestore()
    expect(await foreign).toMatchObject({ code: 'FOREIGN_TOKEN' })
  })

  test('not before all of a write is there', async () => {
    const view = orders()
    const token = await write(created('o1'), created('o2'))
    const { incarnation } = await at.db.log.head()
    const { projections } = at.db
    await projections.open(view, { id: at.db.log.id, incarnation }, '0', 0n)
    await projections.report(view, '0', { problem: undefined, built: true })
    const [first, second] = token.positions
    await at.db.withTransaction((tx) => projections.advance(tx, view, '0', 0n, first!))
    expect(await viewOf(at.db, view).waitFor(token, { timeout: 0 })).toMatchObject({ answer: 'stalled' })
    await at.db.withTransaction((tx) => projections.advance(tx, view, '0', first!, second!))
    expect(await viewOf(at.db, view).waitFor(token, { timeout: 0 })).toEqual({ answer: 'reached' })
  })

  test('stalled: an open transaction holds the log back, and is named', async () => {
    const view = orders()
    const held = recordTelemetry(['projection.held'])
    const projector = await at.projector(at.db.log, [view], { poll: 100 }).start()
    await eventually('it has been built', async () => (await at.db.projections.load(view))?.builtAt)
    const client = await at.pool.connect()
    try {
      await client.query('BEGIN')
      await at.db.outbox.enqueue(client, created('held'))
      const { rows } = await client.query('SELECT pg_backend_pid() AS pid')
      const token = await write(created('o1'))
      const answer = await projector.view(view).waitFor(token, { timeout: '3s' })
      expect(answer).toMatchObject({ answer: 'stalled', reason: expect.stringContaining(`process ${rows[0].pid}`) })
      const [status] = projector.projections()
      expect(status).toMatchObject({ heldBy: { pid: rows[0].pid }, parked: 0 })
      expect(status!.heldSeconds).toBeGreaterThan(1)
      expect(status!.lag!.seconds).toBeGreaterThan(1)
      expect(held.of('projection.held')[0]).toMatchObject({ log: at.db.log.id, pid: rows[0].pid })
      expect(projector.status()).toMatchObject({ state: 'waiting', reason: expect.stringContaining(`${rows[0].pid}`) })
      expect(await at.rows()).toEqual([])
      await client.query('COMMIT')
      expect(await viewOf(at.db, view).waitFor(token)).toEqual({ answer: 'reached' })
      expect((await at.rows()).map(({ order_id }) => order_id)).toEqual(['held', 'o1'])
      await eventually('it is said that nobody holds it', () => held.of('projection.held').at(-1)?.heldFor === 0)
      const caughtUp = { lag: { numbers: 0, seconds: 0 }, heldSeconds: 0, heldBy: undefined }
      await eventually('it has caught up', () => projector.projections()[0]!.lag!.seconds === 0)
      expect(projector.projections()[0]).toMatchObject(caughtUp)
    } finally {
      held.stop()
      client.release(true)
    }
  })

  test('parked: the write itself, or one before it of its key, with the reason', async () => {
    const view = orders((id) => {
      if (id === 'nobody') throw new Reject('there is no such buyer')
      return id
    })
    const projector = await at.projector(at.db.log, [view], { poll: 100 }).start()
    await eventually('it has been built', async () => (await at.db.projections.load(view))?.builtAt)
    const token = await write(created('o1', { buyerId: 'nobody' }))
    expect(await projector.view(view).waitFor(token)).toMatchObject({
      answer: 'parked',
      reason: expect.stringContaining('no such buyer'),
    })
    const behind = await write(changed('o1', 'paid'))
    expect(await viewOf(at.db, view).waitFor(behind)).toMatchObject({
      answer: 'parked',
      reason: expect.stringContaining('behind an earlier event'),
    })
    // Others are not kept.
    expect(await projector.view(view).waitFor(await write(created('o2')))).toEqual({ answer: 'reached' })
    const admin = new ProjectionAdmin({ store: at.db, log: at.db.log })
    expect(await admin.status()).toMatchObject([
      { name: 'order_list_view', version: 1, parked: 2, lag: { numbers: 0, seconds: 0 }, owner: expect.any(String) },
    ])
  })

  test('a token of another log, and what is no token, are refused', async () => {
    const view = orders()
    const projector = at.projector(at.db.log, [view])
    await write(created('o1'))
    await projector.runOnce()
    // Where the projector runs it would be reached, by its number.
    for (const place of [viewOf(at.db, view), projector.view(view)]) {
      expect(await place.waitFor(at.db.log.token('1'))).toEqual({ answer: 'reached' })
      await expect(place.waitFor(new ListLog('other').token('1'))).rejects.toMatchObject({ code: 'FOREIGN_TOKEN' })
      await expect(place.waitFor({} as never)).rejects.toMatchObject({ code: 'INVALID_TOKEN' })
    }
  })

  test('a token of another database is refused, though the log has the same name and the number was reached here', async () => {
    const view = orders()
    const other = await world('postgres', { outbox: { log: true } })
    try {
      const receipts = await other.db.withTransaction((tx) => other.db.outbox.enqueue(tx, created('o1')))
      const token = tokenOf(tokenText(other.db.log.token(receipts)))
      const projector = at.projector(at.db.log, [view])
      await write(created('o1'))
      await projector.runOnce()
      for (const place of [viewOf(at.db, view), projector.view(view)]) {
        expect(await place.waitFor(at.db.log.token(receipts))).toEqual({ answer: 'reached' })
        await expect(place.waitFor(token)).rejects.toMatchObject({
          code: 'FOREIGN_TOKEN',
          message: expect.stringContaining('of another database'),
        })
      }
    } finally {
      await other.end()
    }
  })

  test('a token travels in a header or a cookie; what was forged is no token', async () => {
    const token = { log: 'billing.outbox', incarnation: 'a-b', positions: [3n, 4n, 5n, 9n] }
    expect(tokenOf(tokenText(token))).toEqual(token)
    // An event that was enqueued twice in one batch has one number.
    expect(tokenOf(tokenText({ log: 'outbox', positions: [3n, 3n, 4n] })).positions).toEqual([3n, 4n])
    expect(tokenFrom({ [TOKEN_HEADER]: tokenText(token) })).toEqual(token)
    // However much was written, a token that was handed out is taken back, and has the highest number.
    const many = Array.from({ length: 30_000 }, (_, i) => BigInt(i + 1))
    expect(tokenFrom({ [TOKEN_HEADER]: tokenText({ log: 'outbox', positions: many }) })!.positions.at(-1)).toBe(30_000n)
    const scattered = many.filter((position) => position % 3n === 0n)
    const kept = tokenFrom({ [TOKEN_HEADER]: tokenText({ log: 'outbox', positions: scattered }) })!.positions
    expect(kept).toEqual(scattered.slice(-64))
    expect(tokenFrom(new Headers({ cookie: `a=b; ${tokenCookie(token).split(';')[0]}` }))).toEqual(token)
    expect(tokenFrom({})).toBeUndefined()
    for (const forged of [
      '',
      '1.',
      '2.YQ..1',
      '1.YQ.1',
      '1.YQ..1-99999999999',
      '1.YQ..9-1',
      '1.YQ..-1',
      '1.YQ..9_3',
      '1.YQ..99999999999999999999',
    ]) {
      expect(tokenFrom({ [TOKEN_HEADER]: forged })).toBeUndefined()
      expect(() => tokenOf(forged)).toThrow(expect.objectContaining({ code: 'INVALID_TOKEN' }))
    }
  })
})
