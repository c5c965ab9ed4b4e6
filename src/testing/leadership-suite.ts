import { deepStrictEqual, notStrictEqual, ok, strictEqual } from 'node:assert/strict'
import type { Leadership, Term } from '../outbox/index.ts'
import type { Suite, SuiteOptions } from './conformance.ts'
import { type StoreCase, type StoreFactory, type StoreUnderTest, storeSuite, type Time } from './store-probe.ts'

/** A leadership, and what the suite needs beside it. */
export interface LeadershipUnderTest extends StoreUnderTest {
  readonly leadership: Leadership
}

/** Makes a leadership for the suite, fresh for each case. */
export type LeadershipFactory = StoreFactory<LeadershipUnderTest>

interface LeadershipProbe {
  readonly leadership: Leadership
  readonly time: Time
}

/** What every Leadership must do: one holder of a term at a time, by the store's own clock. */
export function leadershipSuite(factory: LeadershipFactory, options: SuiteOptions = {}): Suite {
  return storeSuite(
    {
      kind: 'leadership',
      features: [],
      cases,
      probe: ({ leadership }: LeadershipUnderTest, time): LeadershipProbe => ({ leadership, time }),
    },
    factory,
    options,
  )
}

const LONG = 60_000
const SHORT = 200

/** Takes a term that must be free by now, or soon. */
function acquired({ leadership, time }: LeadershipProbe, member: string, shard = 0, lease = LONG): Promise<Term> {
  return time.until(`${member} has the term`, () => leadership.acquire(member, shard, lease))
}

const cases: readonly StoreCase<LeadershipProbe>[] = [
  {
    name: 'the first to ask has the term, and others do not while it lasts',
    async run({ leadership }) {
      const term = await leadership.acquire('a', 0, LONG)
      deepStrictEqual([term!.shard, term!.abandoned, term!.note], [0, false, undefined])
      strictEqual(await leadership.acquire('b', 0, LONG), undefined)
      strictEqual(await leadership.acquire('c', 0, LONG), undefined)
      deepStrictEqual(await leadership.terms(), [{ shard: 0, holder: 'a' }])
    },
  },
  {
    name: 'each shard has a term of its own',
    async run({ leadership }) {
      ok(await leadership.acquire('a', 0, LONG))
      ok(await leadership.acquire('b', 1, LONG))
      ok(await leadership.acquire('a', 2, LONG))
      strictEqual(await leadership.acquire('a', 1, LONG), undefined)
      deepStrictEqual(await leadership.terms(), [
        { shard: 0, holder: 'a' },
        { shard: 1, holder: 'b' },
        { shard: 2, holder: 'a' },
      ])
    },
  },
  {
    name: 'of many who ask at once one has the term',
    async run({ leadership }) {
      for (const shard of [0, 1, 2]) {
        const members = Array.from({ length: 8 }, (_, i) => `member ${i}`)
        const terms = await Promise.all(members.map((member) => leadership.acquire(member, shard, LONG)))
        strictEqual(terms.filter((term) => term !== undefined).length, 1)
      }
    },
  },
  {
    name: 'a term that is released is free at once, was not abandoned, and its epoch has passed',
    async run({ leadership }) {
      const first = (await leadership.acquire('a', 0, LONG))!
      await leadership.release('a', first)
      deepStrictEqual(await leadership.terms(), [])
      strictEqual(await leadership.renew('a', first, LONG), false)
      const second = await leadership.acquire('b', 0, LONG)
      strictEqual(second!.abandoned, false)
      ok(BigInt(second!.epoch) > BigInt(first.epoch))
    },
  },
  {
    name: 'epochs grow with every holder, the same one again too',
    async run(probe) {
      let last = 0n
      for (const member of ['a', 'b', 'a', 'a', 'c']) {
        const term = await acquired(probe, member)
        ok(BigInt(term.epoch) > last, `${term.epoch} is greater than ${last}`)
        last = BigInt(term.epoch)
        await probe.leadership.release(member, term)
      }
    },
  },
  {
    name: 'its own term can be taken again, under a new epoch: the old one has passed',
    async run({ leadership }) {
      const first = (await leadership.acquire('a', 0, LONG))!
      const second = await leadership.acquire('a', 0, LONG)
      notStrictEqual(second?.epoch, undefined)
      ok(BigInt(second!.epoch) > BigInt(first.epoch))
      strictEqual(await leadership.renew('a', first, LONG), false)
      strictEqual(await leadership.renew('a', second!, LONG), true)
      await leadership.release('a', first)
      strictEqual(await leadership.renew('a', second!, LONG), true, 'a stale release releases nothing')
    },
  },
  {
    name: 'a term that is not renewed runs out, and whoever takes it over is told',
    async run(probe) {
      const { leadership } = probe
      const first = (await leadership.acquire('a', 0, SHORT))!
      const second = await acquired(probe, 'b')
      strictEqual(second.abandoned, true)
      ok(BigInt(second.epoch) > BigInt(first.epoch))
      strictEqual(await leadership.renew('a', first, LONG), false, 'it has passed on')
      await leadership.release('a', first)
      deepStrictEqual(await leadership.terms(), [{ shard: 0, holder: 'b' }])
    },
  },
  {
    name: 'a term that has run out cannot be renewed, though nobody has taken it',
    async run({ leadership, time }) {
      const term = (await leadership.acquire('a', 0, SHORT))!
      await time.until('it has run out', async () => (await leadership.terms()).length === 0)
      strictEqual(await leadership.renew('a', term, LONG), false)
    },
  },
  {
    name: 'a term that is renewed lasts',
    async run({ leadership, time }) {
      const term = (await leadership.acquire('a', 0, 1000))!
      await time.throughout(1500, async () => {
        strictEqual(await leadership.renew('a', term, 1000), true)
        strictEqual(await leadership.acquire('b', 0, LONG), undefined)
      })
    },
  },
  {
    name: 'members are those who joined and live, each once, in a stable order',
    async run({ leadership, time }) {
      deepStrictEqual(await leadership.members(), [])
      for (const member of ['b', 'a', 'c', 'a']) strictEqual(await leadership.join(member, 'owner', LONG), undefined)
      const members = await leadership.members()
      deepStrictEqual([...members].sort(), ['a', 'b', 'c'])
      deepStrictEqual(await leadership.members(), members)
      await leadership.leave('b')
      await leadership.join('d', 'owner', SHORT)
      await time.until('one has run out', async () => (await leadership.members()).length === 2)
      deepStrictEqual([...(await leadership.members())].sort(), ['a', 'c'])
      await leadership.leave('nobody')
    },
  },
  {
    name: 'a member that joins again and again lives on',
    async run({ leadership, time }) {
      await time.throughout(1500, async () => {
        strictEqual(await leadership.join('a', 'owner', 1000), undefined)
        deepStrictEqual(await leadership.members(), ['a'])
      })
    },
  },
  {
    name: 'whoever renews a term lives on as a member; one that was none does not become one',
    async run({ leadership, time }) {
      await leadership.join('a', 'owner', 1000)
      const [a, b] = [(await leadership.acquire('a', 0, 1000))!, (await leadership.acquire('b', 1, 1000))!]
      await time.throughout(1500, async () => {
        strictEqual(await leadership.renew('a', a, 1000), true)
        strictEqual(await leadership.renew('b', b, 1000), true)
        deepStrictEqual(await leadership.members(), ['a'])
      })
    },
  },
  {
    name: 'members of one mode keep out those of another, as long as they live',
    async run({ leadership, time }) {
      strictEqual(await leadership.join('a', 'owner', LONG), undefined)
      strictEqual(await leadership.join('b', 'lease', LONG), 'owner')
      strictEqual(await leadership.join('c', 'owner', 1000), undefined)
      deepStrictEqual([...(await leadership.members())].sort(), ['a', 'c'], 'one that was kept out is no member')
      await leadership.leave('a')
      await time.until('the last one has run out', async () => !(await leadership.join('b', 'lease', LONG)))
      strictEqual(await leadership.join('a', 'owner', LONG), 'lease')
      deepStrictEqual(await leadership.members(), ['b'])
    },
  },
  {
    name: 'a member that is alone may change its mode',
    async run({ leadership }) {
      strictEqual(await leadership.join('a', 'owner', LONG), undefined)
      strictEqual(await leadership.join('a', 'lease', LONG), undefined)
      strictEqual(await leadership.join('b', 'owner', LONG), 'lease')
    },
  },
  {
    name: 'of those who join at once in different modes, one mode is let in',
    async run({ leadership }) {
      const modes = Array.from({ length: 8 }, (_, i) => (i % 2 === 0 ? 'owner' : 'lease'))
      const answers = await Promise.all(modes.map((mode, i) => leadership.join(`member ${i}`, mode, LONG)))
      const joined = new Set(modes.filter((_, i) => answers[i] === undefined))
      strictEqual(joined.size, 1)
      strictEqual((await leadership.members()).length, answers.filter((answer) => answer === undefined).length)
    },
  },
]
