import fc from 'fast-check'
import { expect, test } from 'vitest'
import { MemoryLeadership } from '../../src/memory/leadership.ts'
import { Assignment } from '../../src/outbox/assignment.ts'
import { FakeClock } from '../../src/testing/index.ts'

const LEASE = 6000
const source = { name: 'outbox', features: {}, open: async () => undefined }

/** Relays that compete for one outbox, by name. Each knows what it learned when it last looked. */
function relays(...names: string[]): { clock: FakeClock; all: Map<string, Assignment> } {
  const clock = new FakeClock()
  const leadership = new MemoryLeadership(clock)
  const options = { reader: 'lease', shards: 1, lease: LEASE, deadKey: 'block', deletes: false } as const
  const given = { ...options, wake: false, attempts: 25, clock }
  const made = names.map((member): [string, Assignment] => {
    const settings = { table: 'outbox', member, leadership, owner: () => source, competing: () => source }
    return [member, new Assignment(given, settings as never)]
  })
  return { clock, all: new Map(made) }
}

const leaders = (all: Map<string, Assignment>) =>
  [...all].filter(([, relay]) => relay.leads() === true).map(([name]) => name)

test('of relays that compete one tells of the whole at once; who comes waits until the other has learned of it', async () => {
  const { clock, all } = relays('a', 'b')
  await all.get('b')!.assignment()
  expect(leaders(all)).toEqual(['b'])
  await all.get('a')!.assignment()
  // B does not know of A yet.
  expect(leaders(all)).toEqual(['b'])
  for (let look = 0; look < 3; look++) {
    await clock.advance(LEASE / 3)
    for (const relay of all.values()) await relay.assignment()
    expect(leaders(all).length).toBeLessThan(2)
  }
  expect(leaders(all)).toEqual(['a'])
})

test('one that competes, was suspended, and opens its source again says who keeps it out, and until when', async () => {
  const clock = new FakeClock()
  const leadership = new MemoryLeadership(clock)
  const options = { reader: 'lease', shards: 1, lease: LEASE, deadKey: 'block', deletes: false } as const
  const competing = (allowed: () => Promise<boolean>) => ({
    ...source,
    open: async () => (await allowed()) || undefined,
  })
  const settings = { table: 'outbox', member: 'a', leadership, owner: () => source, competing } as never
  const relay = new Assignment({ ...options, wake: false, attempts: 25, clock }, settings)
  const [opened] = await relay.assignment()
  expect(opened!.waiting!()).toBeUndefined()
  await leadership.leave('a')
  await leadership.join('web-2', 'owner/1', LEASE)
  expect(await opened!.open(new AbortController().signal)).toBeUndefined()
  const until = new Date(clock.now() + LEASE)
  const reason = `it reads as owner/1, and this relay as lease: web-2, until ${until.toISOString()} unless it is renewed`
  expect(opened!.waiting!()).toEqual({ reason, until })
})

test('one that was suspended does not know when it wakes', async () => {
  const { clock, all } = relays('a', 'b')
  for (const relay of all.values()) await relay.assignment()
  expect(leaders(all)).toEqual(['a'])
  for (let look = 0; look < 4; look++) {
    await clock.advance(LEASE / 3)
    await all.get('b')!.assignment()
  }
  expect(all.get('a')!.leads()).toBeUndefined()
  expect(leaders(all)).toEqual(['b'])
})

test('never two, whoever looks when', () =>
  fc.assert(
    fc.asyncProperty(
      fc.array(fc.tuple(fc.constantFrom('a', 'b', 'c'), fc.integer({ min: 0, max: LEASE })), { maxLength: 40 }),
      async (looks) => {
        const { clock, all } = relays('a', 'b', 'c')
        for (const [name, pause] of looks) {
          await all.get(name)!.assignment()
          expect(leaders(all).length).toBeLessThan(2)
          await clock.advance(pause)
          expect(leaders(all).length).toBeLessThan(2)
        }
        // Once all look as they should, one tells.
        for (let look = 0; look < 6; look++) {
          for (const relay of all.values()) await relay.assignment()
          await clock.advance(LEASE / 3)
        }
        expect(leaders(all)).toEqual(['a'])
      },
    ),
  ))
