import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { OutboxFilter, PendingFilter, State } from '../../src/outbox/admin.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { describeOn } from '../support/services.ts'
import { KINDS, type TestOutbox, testOutbox } from './admin-support.ts'

const WHO = { by: 'ada', note: 'after the outage' }
const HOUR_AGO = new Date(Date.now() - 3_600_000)
const SOON = new Date(Date.now() + 3_600_000)

describeOn(KINDS, 'admin on %s', (kind) => {
  let t: TestOutbox
  let admin: PostgresOutboxAdmin
  beforeEach(async () => {
    t = await testOutbox(kind)
    admin = new PostgresOutboxAdmin(t.db, t.names)
  })
  afterEach(() => t.end())

  test('lists every state page by page, without payloads, nothing twice', async () => {
    const states: State[] = ['dead', 'retrying', 'held', 'leased', 'scheduled', 'ready', 'published']
    for (const state of states) {
      await t.insert(
        ...Array.from({ length: 7 }, (_, n) => ({ state, key: `k${n % 3}`, payload: { secret: 'swordfish' } })),
      )
    }
    const seen: string[] = []
    let after: string | undefined
    for (;;) {
      const page = await admin.list({}, { limit: 5, ...(after === undefined ? {} : { after }) })
      expect(JSON.stringify(page)).not.toContain('swordfish')
      seen.push(...page.map((entry) => `${entry.state} ${entry.eventId}`))
      if (page.length < 5) break
      after = page.at(-1)!.cursor
    }
    expect(new Set(seen).size).toBe(49)
    expect([...new Set(seen.map((line) => line.split(' ')[0]))]).toEqual(states)
    const dead = await admin.list({ states: ['dead'] })
    expect(dead.map((entry) => Number(entry.sequence))).toEqual([1, 2, 3, 4, 5, 6, 7])
    const published = await admin.list({ states: ['published'] })
    expect(published.map((entry) => Number(entry.sequence))).toEqual([49, 48, 47, 46, 45, 44, 43])
  })

  test('lists by each part of a filter, whatever it holds', async () => {
    const odd = `o'hara"; DROP TABLE outbox; --`
    const [one, two, three] = await t.insert(
      { state: 'dead', tenant: odd, topic: 'a', type: 'x', key: 'k' },
      { state: 'dead', tenant: 'acme', topic: odd, type: 'y', key: odd },
      { state: 'ready', tenant: 'acme', topic: 'b', type: odd, created: `clock_timestamp() - interval '2 hours'` },
    )
    const ids = async (filter: OutboxFilter) => (await admin.list(filter)).map((entry) => entry.eventId)
    expect(await ids({ tenant: odd })).toEqual([one])
    expect(await ids({ topic: odd })).toEqual([two])
    expect(await ids({ type: odd })).toEqual([three])
    expect(await ids({ key: odd })).toEqual([two])
    expect(await ids({ tenant: 'acme' })).toEqual([two, three])
    expect(await ids({ tenant: 'acme', states: ['ready'] })).toEqual([three])
    expect(await ids({ eventIds: [one!, three!] })).toEqual([one, three])
    expect(await ids({ since: HOUR_AGO })).toEqual([one, two])
    expect(await ids({ until: HOUR_AGO })).toEqual([three])
    expect(await ids({ tenant: '' })).toEqual([])
    expect(await ids({ states: [] })).toEqual([])
  })

  test('shows one event with its payload', async () => {
    const [id] = await t.insert({ state: 'dead', key: 'k', tenant: 'acme', payload: { n: 12 } })
    await t.query(`UPDATE outbox SET last_error = 'Error: no', payload = '{"n": 12345678901234567890.5}'`)
    const shown = await admin.show(id!)
    expect(shown!.entry).toMatchObject({ eventId: id, state: 'dead', key: 'k', tenant: 'acme', lastError: 'Error: no' })
    expect(shown!.message.data).toBe('{"n": 12345678901234567890.5}')
    expect(shown!.message).toMatchObject({ id, type: 'order.placed', source: '/test' })
    expect(shown!.message.key).toBe('k')
    expect((await admin.list({}, { after: shown!.entry.cursor })).map((entry) => entry.eventId)).toEqual([])
    expect(await admin.show(randomUUID())).toBeUndefined()
    await expect(admin.show('1; DELETE')).rejects.toThrow(expect.objectContaining({ code: 'INVALID_OPTION' }))
  })

  test('re-arms one, some and all dead events, which keep their place', async () => {
    const [one, two, three] = await t.insert(
      { state: 'dead', key: 'k', attempts: 25, tenant: 'acme' },
      { state: 'dead', key: 'k', attempts: 25 },
      { state: 'dead', key: 'j', attempts: 25, tenant: 'acme' },
    )
    await t.insert({ state: 'held', key: 'k' }, { state: 'published', key: 'k' }, { state: 'retrying', attempts: 3 })
    expect(await admin.preview('rearm', { tenant: 'acme' })).toMatchObject({ count: 2, exact: true })
    expect(await admin.rearm({ eventIds: [two!] }, WHO)).toBe(1)
    expect(await t.states()).toEqual({ dead: 2, retrying: 2, held: 1, published: 1 })
    expect(await admin.rearm({ tenant: 'acme' }, WHO)).toBe(2)
    expect(await admin.rearm({}, WHO)).toBe(0)
    const rows = await t.query(
      `SELECT event_id, state, attempts, sequence::int AS n, available_at <= clock_timestamp() AS due FROM outbox ORDER BY sequence LIMIT 3`,
    )
    expect(rows).toEqual(
      [one, two, three].map((id, i) => ({ event_id: id, state: 'retrying', attempts: 0, n: i + 1, due: true })),
    )
    // Those of one call are due together, so that the index of timers has them by number.
    const together = await t.query(`SELECT count(DISTINCT available_at)::int AS n FROM outbox WHERE tenant_id = 'acme'`)
    expect(together).toEqual([{ n: 1 }])
    expect(await t.query(`SELECT attempts FROM outbox WHERE attempts > 0`)).toEqual([{ attempts: 3 }])
  })

  test('re-arms and discards the earliest first, at most as many as it may', async () => {
    await t.insert(...Array.from({ length: 6 }, () => ({ state: 'dead' })))
    expect(await admin.rearm({}, WHO, { limit: 2 })).toBe(2)
    expect(await admin.discardDead({}, WHO, { limit: 2 })).toBe(2)
    const rows = await t.query('SELECT state, sequence::int AS n FROM outbox ORDER BY sequence')
    expect(rows).toEqual([
      { state: 'retrying', n: 1 },
      { state: 'retrying', n: 2 },
      { state: 'dead', n: 5 },
      { state: 'dead', n: 6 },
    ])
  })

  test('discards only the dead that the filter says, with a line in the audit', async () => {
    await t.insert(
      { state: 'dead', type: 'a', key: 'k' },
      { state: 'dead', type: 'b' },
      { state: 'held', type: 'a', key: 'k' },
      { state: 'ready', type: 'a' },
      { state: 'published', type: 'a' },
    )
    await expect(async () => admin.discardDead({}, { by: 'ada', note: ' ' })).rejects.toThrow(/audit.note is missing/)
    expect(await admin.discardDead({ type: 'a' }, WHO)).toBe(1)
    expect(await t.states()).toEqual({ dead: 1, held: 1, ready: 1, published: 1 })
    const [line, ...more] = await admin.audits()
    expect(more).toEqual([])
    expect(line).toMatchObject({ action: 'discard-dead', ...WHO, filter: { type: 'a' }, count: 1 })
    expect(Math.abs(line!.at.getTime() - Date.now())).toBeLessThan(600_000)
  })

  test('discards pending events by tenant or topic and window only, and exactly as many as were expected', async () => {
    const window = { since: HOUR_AGO, until: SOON }
    const states = ['ready', 'scheduled', 'retrying', 'held', 'leased', 'dead', 'published']
    await t.insert(...states.map((state) => ({ state, tenant: 'acme', key: 'k', available: `now() - interval '1 s'` })))
    await t.insert({ state: 'leased', tenant: 'acme', available: `now() + interval '1 h'` }) // a relay works on it
    await t.insert({ state: 'ready', tenant: 'other' })
    await t.insert({ state: 'ready', tenant: 'acme', created: `now() - interval '2 h'` })
    for (const filter of [
      { tenant: 'acme' },
      window,
      { tenant: 'acme', since: SOON, until: HOUR_AGO },
      { type: 'x', ...window },
    ]) {
      await expect(async () => admin.discardPending(filter as PendingFilter, WHO, { expected: 9 })).rejects.toThrow(
        expect.objectContaining({ code: 'INVALID_OPTION' }),
      )
    }
    const filter = { tenant: 'acme', ...window }
    const preview = await admin.preview('discard-pending', filter)
    expect(preview).toMatchObject({ count: 5, exact: true })
    expect(preview.sample).toHaveLength(5)
    for (const expected of [4, 6]) {
      await expect(admin.discardPending(filter, WHO, { expected })).rejects.toThrow(
        expect.objectContaining({ code: 'PREVIEW_OUTDATED' }),
      )
    }
    expect(await admin.audits()).toEqual([])
    expect(await t.query('SELECT count(*)::int AS n FROM outbox')).toEqual([{ n: 10 }])
    expect(await admin.discardPending(filter, WHO, { expected: preview.count })).toBe(5)
    expect(await t.states()).toEqual({ dead: 1, published: 1, leased: 1, ready: 2 })
    expect((await admin.audits())[0]).toMatchObject({ action: 'discard-pending', count: 5, filter: { tenant: 'acme' } })
  })

  test('replays published events under their ids, in their order, behind what is pending', async () => {
    const old = await t.insert(
      ...[3, 1, 2].map((n) => ({
        state: 'published',
        key: 'k',
        published: `now() - ${n} * interval '1 minute'`,
        attempts: 2,
      })),
    )
    const [waiting] = await t.insert({ state: 'ready', key: 'k' })
    await t.insert({ state: 'published', type: 'other' })
    const filter = { type: 'order.placed', key: 'k', since: HOUR_AGO }
    expect(await admin.preview('replay', filter)).toMatchObject({ count: 3, exact: true })
    expect(await admin.replay(filter, WHO)).toBe(3)
    const rows = await t.query(
      `SELECT event_id, attempts, published_at FROM outbox WHERE state = 'ready' ORDER BY sequence`,
    )
    expect(rows.map((row) => row['event_id'])).toEqual([waiting, ...old])
    expect(rows.every((row) => row['attempts'] === 0 && row['published_at'] === null)).toBe(true)
    expect((await t.states())['published']).toBe(1)
    expect((await admin.audits())[0]).toMatchObject({ action: 'replay', count: 3, filter: { key: 'k' } })
  })

  test('replays as new under new ids, and leaves the old as they are', async () => {
    const old = await t.insert(...[0, 1, 2].map((n) => ({ state: 'published', key: 'k', payload: { n } })))
    await t.query(`UPDATE outbox SET foreign_id = 'theirs'`)
    expect(await admin.replay({}, WHO, { asNew: true })).toBe(3)
    expect((await t.states())['published']).toBe(3)
    const rows = await t.query(
      `SELECT event_id, foreign_id, payload->>'n' AS n, key FROM outbox WHERE state = 'ready' ORDER BY sequence`,
    )
    expect(rows.map((row) => [row['n'], row['key'], row['foreign_id']])).toEqual(
      ['0', '1', '2'].map((n) => [n, 'k', null]),
    )
    expect(rows.some((row) => old.includes(row['event_id']))).toBe(false)
    expect((await admin.audits())[0]).toMatchObject({ filter: { asNew: true } })
  })

  test('replays nothing where more match than it may', async () => {
    await t.insert(...[0, 1, 2].map(() => ({ state: 'published' })))
    for (const asNew of [false, true]) {
      await expect(admin.replay({}, WHO, { limit: 2, asNew })).rejects.toThrow(
        expect.objectContaining({ code: 'TOO_MANY' }),
      )
    }
    expect(await t.states()).toEqual({ published: 3 })
    expect(await admin.audits()).toEqual([])
    expect(await admin.replay({}, WHO, { limit: 3 })).toBe(3)
  })

  test('an action and its line in the audit are one', async () => {
    await t.insert({ state: 'dead' })
    await t.query(`ALTER TABLE outbox_audit ADD CONSTRAINT no CHECK (note <> 'no')`)
    await expect(admin.rearm({}, { by: 'ada', note: 'no' })).rejects.toThrow()
    await expect(admin.discardDead({}, { by: 'ada', note: 'no' })).rejects.toThrow()
    expect(await t.states()).toEqual({ dead: 1 })
  })

  test('the audit is listed newest first, page by page', async () => {
    for (let n = 0; n < 5; n++) await admin.rearm({}, { by: 'ada', note: String(n) })
    const first = await admin.audits({ limit: 3 })
    const rest = await admin.audits({ limit: 3, after: first.at(-1)!.id })
    expect([...first, ...rest].map((line) => line.note)).toEqual(['4', '3', '2', '1', '0'])
  })

  test('counts small numbers exactly', async () => {
    const counts = { ready: 3, scheduled: 2, retrying: 4, leased: 1, held: 5, published: 6, dead: 7 }
    for (const [state, count] of Object.entries(counts)) {
      await t.insert(
        ...Array.from({ length: count }, (_, n) => ({ state, key: `k${n % 2}`, created: `now() - interval '90 s'` })),
      )
    }
    const stats = await admin.stats()
    for (const [state, count] of Object.entries(counts)) {
      expect(stats.states[state as State], state).toEqual({ count, estimated: false })
    }
    expect(stats.blockedKeys).toEqual({ count: 2, estimated: false })
    expect(stats.oldestReadySeconds).toBeGreaterThan(80)
    await t.query('DELETE FROM outbox')
    expect((await admin.stats()).oldestReadySeconds).toBeUndefined()
  })

  test('bad input is told, and changes nothing', async () => {
    await t.insert({ state: 'dead' })
    const bad: [() => unknown, RegExp][] = [
      [() => admin.list({ eventIds: ['x'] }), /eventIds: "x" is not a UUID/],
      [() => admin.list({ state: 'dead' } as OutboxFilter), /unknown option "state"; did you mean "states"/],
      [() => admin.list({ states: ['lost' as State] }), /states: "lost" is not allowed/],
      [() => admin.list({}, { limit: 100_000 }), /limit/],
      [() => admin.list({}, { after: 'nonsense' }), /not the cursor/],
      [() => admin.list({ key: 'a\0b' }), /key/],
      [() => admin.list({ since: new Date('x') }), /since/],
      [() => admin.rearm({ states: ['published'] }, WHO), /states: "published" is not allowed. Allowed: dead/],
      [() => admin.replay({}, WHO, { as_new: true } as object), /did you mean "asNew"/],
      [() => admin.audits({ after: 'x' }), /after/],
    ]
    for (const [call, text] of bad) await expect(async () => call()).rejects.toThrow(text)
    expect(await t.states()).toEqual({ dead: 1 })
  })

  test('a table that is not there is told so', async () => {
    await t.migrations.down()
    await expect(admin.list()).rejects.toThrow(expect.objectContaining({ code: 'NOT_MIGRATED' }))
    await expect(admin.clean()).rejects.toThrow(expect.objectContaining({ code: 'NOT_MIGRATED' }))
  })
})
