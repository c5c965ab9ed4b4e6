import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { decodeData, type Message, uuidv7 } from '../core/index.ts'
import { DONE } from '../flow/index.ts'
import type { OutboxEntry, OutboxFilter } from '../outbox/index.ts'
import { dead, ids, type OutboxProbe, retry, sample, samples } from './outbox-probe.ts'
import { refused, type StoreCase } from './store-probe.ts'

export interface Zoo {
  readonly ready: Message
  readonly scheduled: Message
  readonly retrying: Message
  readonly held: Message
  readonly published: Message
  readonly dead: Message
}

/** One event in each state that outlasts its relay. */
export async function zoo(probe: OutboxProbe): Promise<Zoo> {
  const relay = probe.relay()
  const session = await relay.open()
  const next = async (event: Message) => {
    await probe.enqueue([event])
    const [delivery] = await relay.receive(session, 1)
    strictEqual(delivery!.message.id, event.id)
    return delivery!
  }
  const events: Zoo = {
    published: sample(1, { tenant: 'north' }),
    dead: sample(2, { tenant: 'south' }, 'thing.failed'),
    retrying: sample(3, { key: 'a' }),
    held: sample(4, { key: 'a' }),
    scheduled: sample(5, { tenant: 'north' }),
    ready: sample(6),
  }
  await relay.settle(session, DONE, await next(events.published))
  await relay.settle(session, dead('it was refused'), await next(events.dead))
  await relay.settle(session, retry(3_600_000), await next(events.retrying))
  await probe.enqueue([events.held])
  await relay.nothing(session, 'its key waits', 20)
  await probe.enqueue([events.scheduled], { availableAt: new Date(probe.time.now() + 3_600_000) })
  await relay.close()
  await probe.enqueue([events.ready], { topic: 'other' })
  return events
}

/** What people see. */
export const lookCases: readonly StoreCase<OutboxProbe>[] = [
  {
    name: 'list: every event in its state, first what a person should look at',
    async run(probe) {
      const events = await zoo(probe)
      const entries = await probe.outbox.admin.list()
      const order = ['dead', 'retrying', 'held', 'scheduled', 'ready', 'published'] as const
      deepStrictEqual(
        entries.map(({ state }) => state),
        order,
      )
      deepStrictEqual(
        entries.map(({ eventId }) => eventId),
        order.map((state) => events[state].id),
      )
      const failed = entries[0]!
      deepStrictEqual([failed.attempts, failed.type, failed.tenant], [1, 'thing.failed', 'south'])
      ok(failed.lastError!.includes('it was refused'))
      ok(!('message' in failed) && !('payload' in failed), 'a list shows no payloads')
    },
  },
  {
    name: 'list: by each part of a filter, and all that are given must hold',
    async run(probe) {
      const events = await zoo(probe)
      const found = async (filter: OutboxFilter) =>
        (await probe.outbox.admin.list(filter)).map(({ eventId }) => eventId).sort()
      const expected = (...some: readonly Message[]) => ids(some).sort()
      deepStrictEqual(await found({ states: ['dead', 'ready'] }), expected(events.dead, events.ready))
      deepStrictEqual(await found({ tenant: 'north' }), expected(events.published, events.scheduled))
      deepStrictEqual(await found({ tenant: 'north', states: ['scheduled'] }), expected(events.scheduled))
      deepStrictEqual(await found({ topic: 'other' }), expected(events.ready))
      deepStrictEqual(await found({ type: 'thing.failed' }), expected(events.dead))
      deepStrictEqual(await found({ key: 'a' }), expected(events.retrying, events.held))
      deepStrictEqual(
        await found({ eventIds: [events.ready.id, events.dead.id, uuidv7()] }),
        expected(events.ready, events.dead),
      )
      deepStrictEqual(await found({ tenant: 'nowhere' }), [])
      const { createdAt } = await probe.entry(events.ready)
      const soon = new Date(createdAt.getTime() + 1)
      ok((await found({ since: createdAt })).includes(events.ready.id))
      ok((await found({ until: soon })).includes(events.ready.id))
      deepStrictEqual(await found({ since: new Date(createdAt.getTime() + 60_000) }), [])
      deepStrictEqual(await found({ until: new Date(createdAt.getTime() - 3_600_000) }), [])
    },
  },
  {
    name: 'list: page by page every event comes once',
    async run(probe) {
      const { ready: _, ...others } = await zoo(probe)
      const more = samples(25)
      await probe.enqueue(more)
      const seen: OutboxEntry[] = []
      for (let after: string | undefined; ; ) {
        const page = await probe.outbox.admin.list({}, after === undefined ? { limit: 7 } : { limit: 7, after })
        ok(page.length <= 7)
        seen.push(...page)
        if (page.length < 7) break
        after = page.at(-1)!.cursor
      }
      strictEqual(seen.length, 6 + 25)
      strictEqual(new Set(seen.map(({ eventId }) => eventId)).size, seen.length)
      for (const event of Object.values(others)) ok(seen.some(({ eventId }) => eventId === event.id))
    },
  },
  {
    name: 'list: published events newest first, ready ones in their order',
    async run(probe) {
      const [first, second] = samples(2)
      await probe.enqueue([first!, second!])
      const { admin } = probe.outbox
      const listed = async () => (await admin.list()).map(({ eventId }) => eventId)
      deepStrictEqual(await listed(), ids([first!, second!]))
      const relay = probe.relay()
      const session = await relay.open()
      for (let i = 0; i < 2; i++) {
        await relay.settle(session, DONE, ...(await relay.receive(session, 1)))
        await probe.time.pass(5)
      }
      deepStrictEqual(await listed(), ids([second!, first!]))
    },
  },
  {
    name: 'list: what is misspelt or makes no sense is refused',
    async run(probe) {
      const { admin } = probe.outbox
      const list = async (filter: object, page = {}) => admin.list(filter as OutboxFilter, page)
      await refused(list({ tennant: 'north' }), 'UNKNOWN_OPTION', /did you mean "tenant"\?/)
      await refused(list({ states: ['gone'] }), 'INVALID_OPTION', /gone/)
      await refused(list({ eventIds: ['7'] }), 'INVALID_OPTION', /UUID/)
      await refused(list({ since: 'yesterday' }), 'INVALID_OPTION', /since/)
      await refused(list({}, { limit: 0 }), 'INVALID_OPTION', /limit/)
      await refused(list({}, { after: 'x' }), 'INVALID_OPTION', /cursor/)
    },
  },
  {
    name: 'show: the event and its message, or nothing',
    async run(probe) {
      const { admin } = probe.outbox
      const event = sample(7, { key: 'a' })
      await probe.enqueue([event])
      const shown = await admin.show(event.id)
      deepStrictEqual(shown!.entry, (await admin.list())[0])
      deepStrictEqual([shown!.message.id, decodeData(shown!.message)], [event.id, { n: 7 }])
      strictEqual(await admin.show(uuidv7()), undefined)
      await refused((async () => admin.show('seven'))(), 'INVALID_OPTION', /UUID/)
    },
  },
  {
    name: 'preview: how many an action would touch, and some of them; it touches none',
    async run(probe) {
      const { admin } = probe.outbox
      const events = await zoo(probe)
      const before = await probe.entries()
      const window = { since: new Date(0), until: new Date(probe.time.now() + 60_000) }
      const previews = await Promise.all([
        admin.preview('rearm', {}),
        admin.preview('discard-dead', { tenant: 'nowhere' }),
        admin.preview('discard-pending', { ...window, tenant: '' }),
        admin.preview('replay', { tenant: 'north' }),
      ])
      deepStrictEqual(
        previews.map(({ count, exact, sample }) => [count, exact, sample.length]),
        [
          [1, true, 1],
          [0, true, 0],
          [3, true, 3],
          [1, true, 1],
        ],
      )
      deepStrictEqual(
        [previews[0]!.sample[0]!.eventId, previews[3]!.sample[0]!.eventId],
        [events.dead.id, events.published.id],
      )
      deepStrictEqual(await probe.entries(), before)
      deepStrictEqual(await admin.audits(), [])
      await refused((async () => admin.preview('rearm', { states: ['ready'] }))(), 'INVALID_OPTION', /ready/)
    },
  },
  {
    name: 'stats: how many in which state, the oldest that is ready, keys that wait',
    async run(probe) {
      const { admin } = probe.outbox
      const empty = await admin.stats()
      strictEqual(empty.oldestReadySeconds, undefined)
      await zoo(probe)
      await probe.time.pass(50)
      const stats = await admin.stats()
      const counts = Object.entries(stats.states).map(([state, { count, estimated }]) => [state, count, estimated])
      deepStrictEqual(counts.sort(), [
        ['dead', 1, false],
        ['held', 1, false],
        ['leased', 0, false],
        ['published', 1, false],
        ['ready', 1, false],
        ['retrying', 1, false],
        ['scheduled', 1, false],
      ])
      deepStrictEqual(stats.blockedKeys, { count: 1, estimated: false })
      ok(stats.oldestReadySeconds! >= 0.04 && stats.oldestReadySeconds! < 60, `${stats.oldestReadySeconds} s`)
    },
  },
  {
    name: 'stats: what was scheduled, and what is tried again, is old from its time on, though no relay looks',
    async run(probe) {
      const oldest = async () => (await probe.outbox.admin.stats()).oldestReadySeconds ?? 0
      const grows = () => probe.time.until('it is due', async () => (await oldest()) >= 0.04)
      await probe.enqueue([sample(1)], { availableAt: new Date(probe.time.now() + 3_600_000) })
      strictEqual(await oldest(), 0)
      await probe.enqueue([sample(2)], { availableAt: new Date(probe.time.now() + 20) })
      await grows()
      const relay = probe.relay()
      const session = await relay.open()
      await relay.settle(session, retry(20), ...(await relay.receive(session, 1)))
      await relay.close()
      await grows()
      ok((await oldest()) < 60, `what is not due has waited for ${await oldest()} s`)
    },
  },
]
