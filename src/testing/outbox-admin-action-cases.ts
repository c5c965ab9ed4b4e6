import { deepStrictEqual, notStrictEqual, ok, strictEqual } from 'node:assert/strict'
import type { Message } from '../core/index.ts'
import { DONE } from '../flow/index.ts'
import type { PendingFilter } from '../outbox/admin.ts'
import { zoo } from './outbox-admin-look-cases.ts'
import { dead, ids, type OutboxProbe, sample, samples } from './outbox-probe.ts'
import { refused, type StoreCase } from './store-probe.ts'

const audit = { by: 'ada', note: 'a case of the suite' }

/** So many events, all settled alike. */
async function settled(probe: OutboxProbe, events: readonly Message[], settlement = DONE): Promise<void> {
  await probe.enqueue(events)
  const relay = probe.relay()
  await relay.inOrder(await relay.open(), events.length, settlement)
  await relay.close()
}

async function published(probe: OutboxProbe, count: number): Promise<Message[]> {
  const relay = probe.relay()
  const session = await relay.open()
  const arrived: Message[] = []
  // One by one: of a key the next may come only when the one before is done.
  while (arrived.length < count) {
    const taken = await relay.receive(session, 1)
    await relay.settle(session, DONE, ...taken)
    arrived.push(...taken.map(({ message }) => message))
  }
  await relay.nothing(session, 'nothing more', 20)
  await relay.close()
  return arrived
}

/** What people do. */
export const actionCases: readonly StoreCase<OutboxProbe>[] = [
  {
    name: 'rearm: dead events come again, with all their attempts, and nothing else is touched',
    async run(probe) {
      const { admin } = probe.outbox
      const events = await zoo(probe)
      strictEqual(await admin.rearm({}), 1)
      strictEqual(await admin.rearm({}), 0)
      const relay = probe.relay()
      const taken = await relay.receive(await relay.open(), 2)
      deepStrictEqual(ids(taken).sort(), ids([events.dead, events.ready]).sort())
      deepStrictEqual(
        taken.map(({ attempts }) => attempts),
        [0, 0],
      )
      const { retrying, held, scheduled, published } = await probe.states()
      ok(retrying! >= 1)
      deepStrictEqual([held, scheduled, published], [1, 1, 1])
    },
  },
  {
    name: 'rearm: by filter, the earliest first, no more than the limit',
    async run(probe) {
      const { admin } = probe.outbox
      const events = samples(4)
      await settled(probe, events, dead())
      await settled(probe, [sample(5, {}, 'thing.other')], dead())
      strictEqual(await admin.rearm({ type: 'thing.done' }, audit, { limit: 3 }), 3)
      const relay = probe.relay()
      deepStrictEqual(ids(await relay.receive(await relay.open(), 3)), ids(events.slice(0, 3)))
      await refused((async () => admin.rearm({ states: ['published'] }))(), 'INVALID_OPTION', /published/)
    },
  },
  {
    name: 'discardDead: dead events are gone, and nothing else is',
    async run(probe) {
      const { admin } = probe.outbox
      const events = await zoo(probe)
      strictEqual(await admin.discardDead({ tenant: 'north' }, audit), 0)
      strictEqual(await admin.discardDead({ eventIds: [events.dead.id, events.ready.id] }, audit), 1)
      strictEqual(await admin.show(events.dead.id), undefined)
      strictEqual((await probe.entries()).length, 5)
    },
  },
  {
    name: 'discarding needs somebody who does it and a reason',
    async run(probe) {
      const { admin } = probe.outbox
      await zoo(probe)
      for (const wrong of [{ by: '', note: 'x' }, { by: 'ada', note: ' ' }, { by: 'ada' }]) {
        await refused((async () => admin.discardDead({}, wrong as typeof audit))(), 'INVALID_OPTION', /audit/)
      }
      const filter = { tenant: 'north', since: new Date(0), until: new Date(probe.time.now()) }
      const unsigned = (async () => admin.discardPending(filter, { by: '', note: '' }, { expected: 1 }))()
      await refused(unsigned, 'INVALID_OPTION', /audit/)
      strictEqual((await probe.entries()).length, 6)
      deepStrictEqual(await admin.audits(), [])
    },
  },
  {
    name: 'actions: what a caller without types may give is refused before anything is touched',
    async run(probe) {
      const { admin } = probe.outbox
      await zoo(probe)
      const before = await probe.entries()
      const window = { tenant: '', since: new Date(0), until: new Date(probe.time.now() + 60_000) }
      const calls: [string, unknown[], RegExp][] = [
        ['rearm', [{}, {}], /audit.by is missing/],
        ['rearm', [{}, { by: 'ada' }], /audit.note is missing/],
        ['rearm', [{}, { by: 'a\0', note: 'x' }], /audit.by/],
        ['rearm', [{}, { by: 'ada', note: '\ud800' }], /audit.note/],
        ['rearm', [{}, null], /audit/],
        ['rearm', [], /filter is missing/],
        ['rearm', [{ eventIds: 'x' }], /eventIds/],
        ['rearm', [{ states: 'dead' }], /states/],
        ['rearm', [{ tenant: 7 }], /tenant/],
        ['rearm', [{ key: '\ud800' }], /key/],
        ['rearm', [{}, undefined, { limit: '3' }], /limit/],
        ['replay', [{}, {}], /audit.by is missing/],
        ['replay', [], /filter is missing/],
        ['replay', [{}, undefined, { asNew: 'yes' }], /asNew/],
        ['discardDead', [{}], /audit.by is missing/],
        ['discardDead', [undefined, audit], /filter is missing/],
        ['discardPending', [undefined, audit, { expected: 1 }], /filter is missing/],
        ['discardPending', [{ ...window, since: '2026-01-01' }, audit, { expected: 1 }], /since/],
        ['discardPending', [window, audit], /expected/],
        ['discardPending', [window, audit, { expected: '3' }], /expected/],
        ['preview', ['rearm'], /filter is missing/],
        ['preview', ['publish', {}], /action/],
        ['list', [{}, { after: 7 }], /after/],
        ['audits', [{ after: 7 }], /after/],
      ]
      for (const [name, given, text] of calls) {
        const call = (admin as unknown as Record<string, (...given: unknown[]) => unknown>)[name]!.bind(admin)
        await refused((async () => call(...given))(), 'INVALID_OPTION', text)
      }
      deepStrictEqual(await probe.entries(), before)
      deepStrictEqual(await admin.audits(), [])
    },
  },
  {
    name: 'discardPending: only by tenant or topic, within a window; what is published or dead stays',
    async run(probe) {
      const { admin } = probe.outbox
      const events = await zoo(probe)
      const window = { since: new Date(probe.time.now() - 3_600_000), until: new Date(probe.time.now() + 60_000) }
      const discard = async (filter: object, expected = 0) =>
        admin.discardPending(filter as PendingFilter, audit, { expected })
      await refused(discard(window), 'INVALID_OPTION', /tenant or a topic/)
      await refused(discard({ tenant: '' }), 'INVALID_OPTION', /since and until/)
      await refused(discard({ ...window, tenant: '', since: window.until }), 'INVALID_OPTION')
      await refused(discard({ ...window, tenant: '', states: ['dead'] }), 'INVALID_OPTION', /dead/)
      strictEqual(await discard({ ...window, topic: 'nowhere' }), 0)
      strictEqual(await discard({ ...window, tenant: 'north' }, 1), 1)
      strictEqual(await admin.show(events.scheduled.id), undefined)
      strictEqual(await discard({ ...window, tenant: '', until: new Date(window.since.getTime() + 1) }), 0, 'before')
      strictEqual(await discard({ ...window, tenant: '' }, 3), 3)
      deepStrictEqual(await probe.states(), { dead: 1, published: 1 })
    },
  },
  {
    name: 'discardPending: when there are more or fewer than the preview said, nothing happens',
    async run(probe) {
      const { admin } = probe.outbox
      await probe.enqueue(samples(3, { tenant: 'north' }))
      const filter = { tenant: 'north', since: new Date(0), until: new Date(probe.time.now() + 60_000) }
      const { count } = await admin.preview('discard-pending', filter)
      await probe.enqueue(samples(1, { tenant: 'north' }))
      await refused(admin.discardPending(filter, audit, { expected: count }), 'PREVIEW_OUTDATED', /there are more/)
      await refused(admin.discardPending(filter, audit, { expected: 7 }), 'PREVIEW_OUTDATED', /7 .* there are 4/)
      deepStrictEqual(await probe.states(), { ready: 4 })
      deepStrictEqual(await admin.audits(), [])
      strictEqual(await admin.discardPending(filter, audit, { expected: 4 }), 4)
    },
  },
  {
    name: 'discardPending: what a relay has taken is stale when it is settled',
    async run(probe) {
      const { admin } = probe.outbox
      await probe.enqueue(samples(2, { tenant: 'north' }))
      const relay = probe.relay()
      const session = await relay.open()
      const taken = await relay.receive(session, 2)
      const filter = { tenant: 'north', since: new Date(0), until: new Date(probe.time.now() + 60_000) }
      strictEqual(await admin.discardPending(filter, audit, { expected: 2 }), 2)
      strictEqual(await relay.settle(session, DONE, ...taken), 2)
      deepStrictEqual(await probe.entries(), [])
    },
  },
  {
    name: 'replay: published events come again under their own ids, in order, behind what is pending',
    async run(probe) {
      const { admin } = probe.outbox
      const events = samples(3, { key: 'a' })
      await settled(probe, events)
      const pending = sample(9)
      await probe.enqueue([pending])
      strictEqual(await admin.replay({ key: 'a' }), 3)
      strictEqual(await admin.replay({ key: 'a' }), 0, 'they are published no longer')
      const again = await published(probe, 4)
      deepStrictEqual(ids(again), ids([pending, ...events]))
      deepStrictEqual(await probe.states(), { published: 4 })
    },
  },
  {
    name: 'replay: as new, under ids of their own, and the old ones stay as they are',
    async run(probe) {
      const { admin } = probe.outbox
      const events = samples(2, { tenant: 'north', key: 'a' })
      await settled(probe, events)
      strictEqual(await admin.replay({ tenant: 'north' }, audit, { asNew: true }), 2)
      // The second of a key may be held at once.
      const { published: old, ready = 0, held = 0 } = await probe.states()
      deepStrictEqual([old, ready + held], [2, 2])
      const copies = await published(probe, 2)
      for (const [i, copy] of copies.entries()) {
        notStrictEqual(copy.id, events[i]!.id)
        const { type, source, key, tenant } = copy
        deepStrictEqual([type, source, key, tenant], [events[i]!.type, events[i]!.source, 'a', 'north'])
      }
    },
  },
  {
    name: 'replay: more than the limit is refused, and nothing is sent',
    async run(probe) {
      const { admin } = probe.outbox
      await settled(probe, samples(3))
      await refused(admin.replay({}, audit, { limit: 2 }), 'TOO_MANY')
      deepStrictEqual(await probe.states(), { published: 3 })
      deepStrictEqual(await admin.audits(), [])
      strictEqual(await admin.replay({}, audit, { limit: 3 }), 3)
    },
  },
  {
    name: 'clean: what was published before the retention, so many at a time, and never anything else',
    async run(probe) {
      const { admin } = probe.outbox
      await zoo(probe)
      await probe.enqueue(samples(4))
      await published(probe, 5)
      await probe.time.pass(100)
      strictEqual(await admin.clean({ retention: 3_600_000, limit: 100 }), 0)
      strictEqual(await admin.clean({ retention: 50, limit: 2 }), 2)
      strictEqual(await admin.clean({ retention: 50, limit: 100 }), 4)
      strictEqual(await admin.clean({ retention: 50, limit: 100 }), 0)
      deepStrictEqual(await probe.states(), { dead: 1, retrying: 1, held: 1, scheduled: 1 })
    },
  },
  {
    name: 'audits: who did what, why and to how many, newest first',
    async run(probe) {
      const { admin } = probe.outbox
      await zoo(probe)
      await admin.replay({ tenant: 'north' }, audit)
      await admin.rearm({ tenant: 'south' })
      await admin.discardDead({ tenant: 'south' }, audit)
      const lines = await admin.audits()
      deepStrictEqual(
        lines.map(({ action, by, note, count, filter }) => [action, by, note, count, filter]),
        [
          ['discard-dead', 'ada', audit.note, 0, { tenant: 'south' }],
          ['rearm', '', '', 1, { tenant: 'south' }],
          ['replay', 'ada', audit.note, 1, { tenant: 'north' }],
        ],
      )
      for (const { at } of lines) ok(Math.abs(probe.time.now() - at.getTime()) < 60_000)
      const [newest] = await admin.audits({ limit: 1 })
      deepStrictEqual(await admin.audits({ after: newest!.id }), lines.slice(1))
    },
  },
]
