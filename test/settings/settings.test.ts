import { readFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { milliseconds, WaybillError } from '../../src/core/index.ts'
import { RETRY_DEFAULTS } from '../../src/flow/index.ts'
import { Cleaner, Relay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { RELAY_DEFAULTS } from '../../src/outbox/relay-options.ts'
import { postgres } from '../../src/postgres/index.ts'
import { SETTINGS, settingsFrom } from '../../src/settings/index.ts'
import { scraped, WORLDS } from '../observability/worlds.ts'
import { outboxOn, Placed, type TestOutbox } from '../postgres/support.ts'
import { eventually } from '../support/wait.ts'

/** Seed C, section 10.1, word for word. */
const SEED: Readonly<Record<string, string>> = {
  OUTBOX_RELAY_ENABLED: 'true',
  OUTBOX_RELAY_POLL_INTERVAL: '1s',
  OUTBOX_RELAY_BATCH_SIZE: '100',
  OUTBOX_RELAY_LOCK_TTL: '60s',
  OUTBOX_RELAY_MAX_ATTEMPTS: '25',
  OUTBOX_CLEANER_ENABLED: 'true',
  OUTBOX_CLEANER_RETENTION: '168h',
}

function problemOf(environment: Record<string, string>): string {
  try {
    settingsFrom(environment)
  } catch (error) {
    expect(error).toBeInstanceOf(WaybillError)
    expect((error as WaybillError).code).toBe('INVALID_SETTING')
    return (error as Error).message
  }
  throw new Error('nothing was refused')
}

describe('settingsFrom', () => {
  test("the table has C's names and C's defaults, and no others", () => {
    expect(Object.fromEntries(SETTINGS.map((one) => [`OUTBOX_${one.name}`, one.default]))).toEqual(SEED)
  })

  test('what is not set is absent, so that the defaults of relay and cleaner count', () => {
    expect(settingsFrom({})).toEqual({ relay: {}, cleaner: {} })
    expect(settingsFrom({ OUTBOX_RELAY_BATCH_SIZE: '', PATH: '/bin' })).toEqual({ relay: {}, cleaner: {} })
  })

  test.each([
    ['OUTBOX_RELAY_ENABLED', ['relay', 'enabled'], true],
    ['OUTBOX_RELAY_POLL_INTERVAL', ['relay', 'poll'], milliseconds(RELAY_DEFAULTS.poll)],
    ['OUTBOX_RELAY_BATCH_SIZE', ['relay', 'batch'], RELAY_DEFAULTS.batch],
    ['OUTBOX_RELAY_LOCK_TTL', ['relay', 'lease'], milliseconds(RELAY_DEFAULTS.lease)],
    ['OUTBOX_RELAY_MAX_ATTEMPTS', ['relay', 'retry', 'attempts'], RETRY_DEFAULTS.attempts],
    ['OUTBOX_CLEANER_ENABLED', ['cleaner', 'enabled'], true],
    ['OUTBOX_CLEANER_RETENTION', ['cleaner', 'retention'], milliseconds('7d')],
  ] as const)('%s: its default is that of the option it sets', (name, path, expected) => {
    const settings: unknown = settingsFrom({ [name]: SEED[name]! })
    expect(path.reduce((at, part) => (at as Record<string, unknown>)[part], settings)).toBe(expected)
  })

  test('durations as we write them, and as Go does', () => {
    const poll = (text: string) => settingsFrom({ OUTBOX_RELAY_POLL_INTERVAL: text }).relay.poll
    expect([poll('250ms'), poll('1m30s'), poll('168h'), poll('1.5h'), poll('1h0m0.5s')]).toEqual([
      250, 90_000, 604_800_000, 5_400_000, 3_600_500,
    ])
  })

  test('several modules have a prefix each', () => {
    const environment = {
      ORG_OUTBOX_RELAY_BATCH_SIZE: '5',
      HRM_OUTBOX_RELAY_BATCH_SIZE: '6',
      OUTBOX_RELAY_ENABLED: '0',
    }
    expect(settingsFrom(environment, { prefix: 'ORG_OUTBOX' }).relay).toEqual({ batch: 5 })
    expect(settingsFrom(environment, { prefix: 'HRM_OUTBOX' }).relay).toEqual({ batch: 6 })
    expect(settingsFrom(environment).relay).toEqual({ enabled: false })
    expect(() => settingsFrom({}, { prefix: 'org-' })).toThrow('prefix')
  })

  test('all that is wrong is told at once: name, value, what is allowed; and the nearest name', () => {
    const text = problemOf({
      OUTBOX_RELAY_ENABLED: 'maybe',
      OUTBOX_RELAY_POLL_INTERVAL: '30',
      OUTBOX_RELAY_BATCH_SIZE: '20000',
      OUTBOX_RELAY_LOCK_TTL: '5ms',
      OUTBOX_RELAY_MAX_ATTEMPTS: '-1',
      OUTBOX_RELAY_MAX_ATTEMTPS: '3',
      OUTBOX_CLEANER_RETENTION: 'a week',
    })
    expect(text).toContain('OUTBOX_RELAY_ENABLED="maybe" is not allowed; give true or false')
    expect(text).toContain('OUTBOX_RELAY_POLL_INTERVAL="30" is not allowed; give a duration of at least 1 ms')
    expect(text).toContain(
      'OUTBOX_RELAY_BATCH_SIZE="20000" is not allowed; give a whole number of at least 1 and at most 10000',
    )
    expect(text).toContain(
      'OUTBOX_RELAY_LOCK_TTL="5ms" is not allowed; give a duration of at least 100 ms and at most 24 days',
    )
    expect(text).toContain('OUTBOX_RELAY_MAX_ATTEMPTS="-1" is not allowed; give a whole number of at least 1')
    expect(text).toContain('OUTBOX_RELAY_MAX_ATTEMTPS is no setting; did you mean OUTBOX_RELAY_MAX_ATTEMPTS?')
    expect(text).toContain('OUTBOX_CLEANER_RETENTION="a week" is not allowed; give a duration')
  })

  test('a name that is misspelled before RELAY_ or CLEANER_ is no silent default', () => {
    for (const [name, meant] of [
      ['OUTBOX_REALY_ENABLED', 'OUTBOX_RELAY_ENABLED'],
      ['OUTBOX_RELAYS_ENABLED', 'OUTBOX_RELAY_ENABLED'],
      ['OUTBOX_RELAY-ENABLED', 'OUTBOX_RELAY_ENABLED'],
      ['outbox_relay_enabled', 'OUTBOX_RELAY_ENABLED'],
      ['OUTBOX_CLEANUP_RETENTION', 'OUTBOX_CLEANER_RETENTION'],
    ] as const) {
      expect(problemOf({ [name]: 'false' })).toContain(`${name} is no setting; did you mean ${meant}?`)
    }
    // What is another's: a program's, a module's; and on Windows, where a name is found in any case, it was read.
    const other = {
      OUTBOX_URL: 'x',
      OUTBOX_TABLE: 'x',
      OUTBOX_POLL_INTERVAL: 'x',
      OUTBOX_B_RELAY_ENABLED: 'x',
      RELAY: 'x',
    }
    expect(settingsFrom({ ...other, B_OUTBOX_RELAY_ENABLED: 'x' }, { prefix: 'OUTBOX' })).toEqual({
      relay: {},
      cleaner: {},
    })
    expect(settingsFrom({ B_OUTBOX_RELAY_ENABLED: 'x' }, { prefix: 'A_OUTBOX' }).relay).toEqual({})
    const windows = new Proxy({ Outbox_Relay_Enabled: 'false' } as Record<string, string>, {
      get: (all, name) => Object.entries(all).find(([one]) => one.toUpperCase() === String(name).toUpperCase())?.[1],
    })
    expect(settingsFrom(windows).relay).toEqual({ enabled: false })
  })

  test.each([
    ['ENABLED', [' False ', '0', 'FALSE'], ['no', 'off', 'constructor', '__proto__', 'toString', 'true false']],
    [
      'POLL_INTERVAL',
      [' 1m30s ', '0.5s'],
      ['1m30', '-1s', '1e3s', '1 s', 'Infinity', '0s', `${'9'.repeat(400)}h`, '1e400ms'],
    ],
    ['BATCH_SIZE', [' 5 ', '1_000'], ['-5', '5.5', '1e3', '0x10', '9'.repeat(400), '٣', '1,000', 'NaN']],
  ])('RELAY_%s: what is allowed in an odd form, and what is not', (name, allowed, refused) => {
    const at = `OUTBOX_RELAY_${name}`
    for (const value of allowed) expect(Object.keys(settingsFrom({ [at]: value }).relay), value).toHaveLength(1)
    for (const value of refused) expect(() => settingsFrom({ [at]: value }), value).toThrow(`${at}=`)
    // Set and empty is not set.
    for (const value of ['', '   ', undefined]) expect(settingsFrom({ [at]: value }).relay).toEqual({})
  })

  test('the bounds of a setting are those of the option it sets', () => {
    const relay = (environment: Record<string, string>) => {
      const db = memory()
      return new Relay({ from: db.outbox, to: async () => {}, ...settingsFrom(environment).relay })
    }
    for (const environment of [
      { OUTBOX_RELAY_BATCH_SIZE: '10000', OUTBOX_RELAY_LOCK_TTL: '100ms', OUTBOX_RELAY_POLL_INTERVAL: '1ms' },
      { OUTBOX_RELAY_BATCH_SIZE: '1', OUTBOX_RELAY_LOCK_TTL: '24d', OUTBOX_RELAY_MAX_ATTEMPTS: '1' },
    ]) {
      expect(() => relay(environment)).not.toThrow()
    }
    for (const options of [
      { batch: 10_001 },
      { batch: 0 },
      { lease: 99 },
      { lease: '25d' },
      { retry: { attempts: 0 } },
    ] as const) {
      expect(() => new Relay({ from: memory().outbox, to: async () => {}, ...options })).toThrow()
    }
  })

  test('a value that would move the cursor of a terminal, or turn text round, is shown and inert', () => {
    const text = problemOf({ OUTBOX_RELAY_ENABLED: '\u001b[31m\u009b2J\u202eeslaf' })
    expect(text).toContain('OUTBOX_RELAY_ENABLED="\\u001b[31m\\u009b2J\\u202eeslaf" is not allowed')
  })

  test('docs/guides/settings.md has every setting, as the table has it', () => {
    const docs = readFileSync(new URL('../../docs/guides/settings.md', import.meta.url), 'utf8')
    const rows = docs.split('\n').filter((line) => line.startsWith('| `OUTBOX_'))
    expect(rows).toEqual(
      SETTINGS.map(({ name, default: usual, of, option, meaning }) => {
        return `| \`OUTBOX_${name}\` | \`${usual}\` | \`${of}.${option}\` | ${meaning} |`
      }),
    )
  })
})

describe("seed C's section 10.3 on PostgreSQL", () => {
  let t: TestOutbox
  beforeAll(async () => {
    t = await outboxOn()
  })
  afterAll(() => t.end())

  test('OUTBOX_RELAY_ENABLED=false stops delivery and keeps the data; on again, all of it goes out', async () => {
    await t.enqueue(Placed({ n: 1 }))
    const off = t.relay({ ...settingsFrom({ OUTBOX_RELAY_ENABLED: 'false' }).relay, poll: '10ms' })
    await off.start()
    expect(off.status()).toMatchObject({ state: 'paused', reason: expect.stringContaining('switched off') })
    const metrics = scraped()
    expect(await metrics.of('outbox_paused')).toEqual({ '': 1 })
    expect(await metrics.of('waybill_gauges_up'), 'it asks nothing').toEqual({})
    metrics.stop()
    await t.enqueue([Placed({ n: 2 }), Placed({ n: 3 })])
    expect(await off.runOnce()).toMatchObject({ taken: 0 })
    expect(await t.states()).toEqual({ ready: 3 })
    await off.stop()
    expect(off.status().state).toBe('stopped')
    expect(t.sink.messages).toEqual([])
    const on = t.relay({ ...settingsFrom({ OUTBOX_RELAY_ENABLED: 'true' }).relay, poll: '10ms' })
    await on.start()
    await t.sink.arrived(3)
    expect(t.arrivals()).toEqual({ '': [1, 2, 3] })
    await on.stop()
  })

  test('OUTBOX_CLEANER_ENABLED=false removes nothing, and says so', async () => {
    await eventually('they are published', async () => (await t.states())['published'] === 3)
    const of = t.outbox.admin
    const off = new Cleaner({ of, ...settingsFrom({ OUTBOX_CLEANER_ENABLED: 'false' }).cleaner, retention: 0 })
    await off.start()
    expect(off.status()).toMatchObject({ state: 'paused' })
    expect(await off.runOnce()).toEqual({})
    await off.stop()
    expect(await t.states()).toEqual({ published: 3 })
    const { cleaner } = settingsFrom({ OUTBOX_CLEANER_RETENTION: '0s' })
    expect(await new Cleaner({ of, ...cleaner }).runOnce()).toEqual({ outbox: 3 })
  })

  test('unpublished data is removed only by table, tenant and time window, after a count, with an audit record', async () => {
    const since = new Date(Date.now() - 60_000)
    await t.enqueue([Placed({ n: 4 }), Placed({ n: 5 })], { tenant: 'acme' })
    await t.enqueue(Placed({ n: 6 }), { tenant: 'other' })
    const until = new Date(Date.now() + 60_000)
    const { admin } = t.outbox
    const audit = { by: 'an operator', note: 'sent twice by mistake' }
    const loose = { since, until } as never
    expect(() => admin.discardPending(loose, audit, { expected: 3 })).toThrow('give a tenant or a topic')
    const filter = { tenant: 'acme', since, until }
    const { count } = await admin.preview('discard-pending', filter)
    expect(await admin.discardPending(filter, audit, { expected: count })).toBe(2)
    expect(await t.states()).toEqual({ ready: 1 })
    expect(await admin.audits()).toMatchObject([{ action: 'discard-pending', count: 2, ...audit }])
  })
})

describe.each(['memory', 'redis'])("seed C's section 10.3 on %s", (kind) => {
  test('OUTBOX_RELAY_ENABLED=false stops delivery and keeps the data; on again, all of it goes out', async () => {
    const world = await WORLDS[kind]!()
    const sent: number[] = []
    const to = async ({ data }: { data: unknown }) => void sent.push(JSON.parse(String(data)).n)
    const relay = (enabled: 'false' | 'true') =>
      new Relay({
        ...{ from: world.outbox, to: to as never },
        ...settingsFrom({ OUTBOX_RELAY_ENABLED: enabled, OUTBOX_RELAY_POLL_INTERVAL: '10ms' }).relay,
      })
    const [off, on] = [relay('false'), relay('true')]
    try {
      await world.enqueue(Placed({ n: 1 }), { key: 'a' })
      await off.start()
      expect(off.status()).toMatchObject({ state: 'paused', reason: expect.stringContaining('switched off') })
      await world.enqueue([Placed({ n: 2 }), Placed({ n: 3 })], { key: 'a' })
      expect(await off.runOnce()).toMatchObject({ taken: 0 })
      await off.stop()
      expect((await world.outbox.admin!.stats()).states.ready.count).toBeGreaterThan(0)
      expect(sent).toEqual([])
      await on.start()
      await eventually('all of it', () => sent.length === 3)
      expect(sent).toEqual([1, 2, 3])
    } finally {
      await off.stop()
      await on.stop()
      await world.end()
    }
  })
})

test.each([
  ['postgres', 'owner'],
  ['postgres', 'lease'],
  ['redis', 'auto'],
] as const)('%s, %s: a relay works with the largest values that are allowed', async (kind, reader) => {
  const world = await WORLDS[kind]!()
  const settings = settingsFrom({
    OUTBOX_RELAY_LOCK_TTL: '24d',
    OUTBOX_RELAY_POLL_INTERVAL: '876000h',
    OUTBOX_RELAY_BATCH_SIZE: '10000',
    OUTBOX_RELAY_MAX_ATTEMPTS: String(Number.MAX_SAFE_INTEGER),
    OUTBOX_CLEANER_RETENTION: '876000h',
  })
  let sent = 0
  const relay = new Relay({ from: world.outbox, to: async () => void sent++, reader, ...settings.relay })
  try {
    await world.enqueue([Placed({ n: 1 }), Placed({ n: 2 })])
    await relay.start()
    await eventually('both are sent', () => sent === 2)
    const cleaner = new Cleaner({ of: world.outbox.admin as never, ...settings.cleaner })
    expect(Object.values(await cleaner.runOnce())).toEqual([0])
  } finally {
    await relay.stop()
    await world.end()
  }
})

test('PostgreSQL: a relay that may try for ever takes over from one that died alone with an event', async () => {
  const t = await outboxOn()
  try {
    await t.enqueue(Placed({ n: 1 }))
    await t.pool.query(`INSERT INTO outbox_terms (shard, epoch, holder, expires_at, note)
      SELECT 0, 7, 'host:1:dead', clock_timestamp(), event_id FROM outbox`)
    await t.relay({ retry: { attempts: Number.MAX_SAFE_INTEGER } }).runOnce()
    const { rows } = await t.pool.query('SELECT state, attempts FROM outbox')
    expect(rows).toEqual([{ state: 'retrying', attempts: 1 }])
  } finally {
    await t.end()
  }
})

test('a relay that is switched off asks nothing of its database, and keeps no connection', async () => {
  const pool = new pg.Pool({ connectionString: 'postgres://nobody@127.0.0.1:1/none' })
  const db = postgres({ pool })
  const relay = new Relay({ from: db.outbox, to: async () => {}, enabled: false })
  await relay.start()
  expect(relay.status().state).toBe('paused')
  await relay.stop()
  expect(pool.totalCount).toBe(0)
  await pool.end()
})
