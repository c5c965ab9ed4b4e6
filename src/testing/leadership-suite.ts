import { deepStrictEqual, notStrictEqual, ok, strictEqual } from 'node:assert/strict'
import type { Leadership, Term } from '../outbox/index.ts'
import type { Suite, SuiteOptions } from './conformance.ts'
import { type StoreCase, type StoreFactory, type StoreUnderTest, storeSuite, type Time } from './store-probe.ts'

/** A leadership, and what the suite needs beside it. */
export interface LeadershipUnderTest extends StoreUnderTest {
  readonly leadership: Leadership
  /** Of another scope in the same store, for `scopes`. */
  readonly other?: Leadership
}

/** What a leadership can do beyond one scope. */
export interface LeadershipFeatures {
  /** More than one scope: `other`. */
  readonly scopes?: boolean
}

/** Makes a leadership for the suite, fresh for each case. */
export type LeadershipFactory = StoreFactory<LeadershipUnderTest, LeadershipFeatures>

interface LeadershipProbe {
  readonly leadership: Leadership
  readonly other: Leadership | undefined
  readonly time: Time
}

/** What every Leadership must do: one holder of a term at a time, by the store's own clock. */
export function leadershipSuite(factory: LeadershipFactory, options: SuiteOptions = {}): Suite {
  return storeSuite(
    {
      kind: 'leadership',
      features: ['scopes'] satisfies (keyof LeadershipFeatures)[],
      cases,
      probe: ({ leadership, other }: LeadershipUnderTest, time): LeadershipProbe => ({ leadership, other, time }),
    },
    factory,
    options,
  )
}

const LONG = 60_000
const SHORT = 200

/** Which shard is whose. */
async function holders(leadership: Leadership): Promise<[number, string][]> {
  return (await leadership.terms()).map(({ shard, holder }) => [shard, holder])
}

/** Who lives. */
async function names(leadership: Leadership): Promise<string[]> {
  return (await leadership.members()).map(({ name }) => name)
}

/** The mode that keeps it out, if any. */
async function refusedBy(
  leadership: Leadership,
  member: string,
  mode: string,
  lease = LONG,
): Promise<string | undefined> {
  return (await leadership.join(member, mode, lease)).excludedBy?.mode
}

/** Takes a term that must be free by now, or soon. */
function acquired({ leadership, time }: LeadershipProbe, member: string, shard = 0, lease = LONG): Promise<Term> {
  return time.until(`${member} has the term`, () => leadership.acquire(member, shard, lease))
}

const cases: readonly StoreCase<LeadershipProbe>[] = [
  {
    name: 'the first to ask has the term, and others do not while it lasts',
    async run({ leadership }) {
      const term = await leadership.acquire('a', 0, LONG)
      deepStrictEqual([term!.shard, term!.abandoned, term!.probe], [0, false, undefined])
      strictEqual(await leadership.acquire('b', 0, LONG), undefined)
      strictEqual(await leadership.acquire('c', 0, LONG), undefined)
      deepStrictEqual(await holders(leadership), [[0, 'a']])
    },
  },
  {
    name: 'each shard has a term of its own',
    async run({ leadership }) {
      ok(await leadership.acquire('a', 0, LONG))
      ok(await leadership.acquire('b', 1, LONG))
      ok(await leadership.acquire('a', 2, LONG))
      strictEqual(await leadership.acquire('a', 1, LONG), undefined)
      deepStrictEqual(await holders(leadership), [
        [0, 'a'],
        [1, 'b'],
        [2, 'a'],
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
    name: 'a term that is not renewed runs out, and its next holder learns of it',
    async run(probe) {
      const { leadership } = probe
      const first = (await leadership.acquire('a', 0, SHORT))!
      const second = await acquired(probe, 'b')
      strictEqual(second.abandoned, true)
      ok(BigInt(second.epoch) > BigInt(first.epoch))
      strictEqual(await leadership.renew('a', first, LONG), false, 'it has passed on')
      await leadership.release('a', first)
      deepStrictEqual(await holders(leadership), [[0, 'b']])
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
    name: 'a term says who holds it, and for how long at most',
    async run({ leadership }) {
      await leadership.acquire('a', 0, LONG)
      const [term] = await leadership.terms()
      ok(term!.expiresIn > 0 && term!.expiresIn <= LONG, `it lasts ${term!.expiresIn} ms more`)
    },
  },
  {
    name: 'a recorded probe is given to whoever takes over an abandoned term, and to nobody else',
    async run(probe) {
      const { leadership } = probe
      const event = '0192aaaa-0000-7000-8000-000000000001'
      // Long enough to record it, on a busy machine too.
      const first = (await leadership.acquire('a', 0, 5 * SHORT))!
      await leadership.recordProbe(first, event)
      const second = await acquired(probe, 'b', 0, SHORT)
      deepStrictEqual([second.abandoned, second.probe], [true, event])
      const third = await acquired(probe, 'c')
      deepStrictEqual([third.abandoned, third.probe], [true, undefined], 'it was of the first only')
      await leadership.recordProbe(third, event)
      await leadership.recordProbe(third, undefined)
      await leadership.recordProbe(first, event)
      await leadership.release('c', third)
      strictEqual((await acquired(probe, 'd')).probe, undefined)
    },
  },
  {
    name: 'a probe recorded under a term that has passed on changes nothing',
    async run(probe) {
      const { leadership } = probe
      const first = (await leadership.acquire('a', 0, SHORT))!
      await acquired(probe, 'b', 0, SHORT)
      await leadership.recordProbe(first, '0192aaaa-0000-7000-8000-000000000001')
      strictEqual((await acquired(probe, 'c')).probe, undefined)
    },
  },
  {
    name: 'members are those who joined and live, each once, by name, with their modes',
    async run({ leadership, time }) {
      deepStrictEqual(await leadership.members(), [])
      for (const member of ['b', 'a', 'c', 'a']) deepStrictEqual(await leadership.join(member, 'owner', LONG), {})
      const modes = ['a', 'b', 'c'].map((name) => ({ name, mode: 'owner' }))
      deepStrictEqual(await leadership.members(), modes)
      await leadership.leave('b')
      await leadership.join('d', 'owner', SHORT)
      await time.until('one has run out', async () => (await leadership.members()).length === 2)
      deepStrictEqual(await names(leadership), ['a', 'c'])
      await leadership.leave('nobody')
    },
  },
  {
    name: 'a member that joins again and again lives on',
    async run({ leadership, time }) {
      await time.throughout(1500, async () => {
        deepStrictEqual(await leadership.join('a', 'owner', 1000), {})
        deepStrictEqual(await names(leadership), ['a'])
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
        deepStrictEqual(await names(leadership), ['a'])
      })
    },
  },
  {
    name: 'members of one mode keep out those of another, as long as they live',
    async run({ leadership, time }) {
      deepStrictEqual(await leadership.join('a', 'owner', LONG), {})
      const { excludedBy } = await leadership.join('b', 'lease', LONG)
      deepStrictEqual([excludedBy?.holder, excludedBy?.mode], ['a', 'owner'])
      ok(excludedBy!.expiresIn > 0 && excludedBy!.expiresIn <= LONG, `it lives ${excludedBy!.expiresIn} ms more`)
      strictEqual(await refusedBy(leadership, 'c', 'owner', 1000), undefined)
      deepStrictEqual(await names(leadership), ['a', 'c'], 'one that was kept out is no member')
      strictEqual((await leadership.join('b', 'lease', LONG)).excludedBy?.holder, 'a', 'the one that lives longest')
      await leadership.leave('a')
      await time.until('the last one has run out', async () => !(await refusedBy(leadership, 'b', 'lease')))
      strictEqual(await refusedBy(leadership, 'a', 'owner'), 'lease')
      deepStrictEqual(await names(leadership), ['b'])
    },
  },
  {
    name: 'a member that is alone may change its mode',
    async run({ leadership }) {
      strictEqual(await refusedBy(leadership, 'a', 'owner'), undefined)
      strictEqual(await refusedBy(leadership, 'a', 'lease'), undefined)
      strictEqual(await refusedBy(leadership, 'b', 'owner'), 'lease')
    },
  },
  {
    name: 'of those who join at once in different modes, one mode is let in',
    async run({ leadership }) {
      const modes = Array.from({ length: 8 }, (_, i) => (i % 2 === 0 ? 'owner' : 'lease'))
      const refused = await Promise.all(modes.map((mode, i) => refusedBy(leadership, `member ${i}`, mode)))
      const joined = new Set(modes.filter((_, i) => refused[i] === undefined))
      strictEqual(joined.size, 1)
      strictEqual((await leadership.members()).length, refused.filter((mode) => mode === undefined).length)
    },
  },
  {
    name: 'scopes know nothing of each other',
    needs: ['scopes'],
    async run({ leadership, other }) {
      ok(await leadership.acquire('a', 0, LONG))
      await leadership.join('a', 'owner', LONG)
      strictEqual(await refusedBy(other!, 'b', 'lease'), undefined)
      deepStrictEqual([await names(leadership), await names(other!)], [['a'], ['b']])
      const term = await other!.acquire('b', 0, LONG)
      ok(term !== undefined && !term.abandoned)
      deepStrictEqual([await holders(leadership), await holders(other!)], [[[0, 'a']], [[0, 'b']]])
      await other!.release('b', term)
      deepStrictEqual(await holders(leadership), [[0, 'a']])
    },
  },
]
