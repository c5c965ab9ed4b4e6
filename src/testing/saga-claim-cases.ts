import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { uuidv7 } from '../core/index.ts'
import { definition, held, LEASE, type SagaProbe } from './saga-probe.ts'
import { openTransaction, type StoreCase } from './store-probe.ts'

/** Long enough to look before it, on a busy machine too. In milliseconds. */
const SOON = 1200

/** A saga is driven by one runner at a time, and none is forgotten: claims, leases, takeovers, waking. */
export const CLAIM_CASES: readonly StoreCase<SagaProbe>[] = [
  {
    name: 'a claim gives what is due of the definitions asked for, once, with a token and a new version',
    async run(probe) {
      const first = await probe.inserted()
      const second = await probe.inserted()
      await probe.inserted({ wakeIn: LEASE })
      await probe.inserted({ definition: 'order@2#other' })
      const { runner, claimed } = await probe.claim({ count: 1 })
      deepStrictEqual([claimed[0]!.saga.id, claimed[0]!.takenOver, claimed.length], [first.id, false, 1])
      deepStrictEqual([claimed[0]!.saga.version, claimed[0]!.saga.runner], [2, runner])
      deepStrictEqual(claimed[0]!.saga, await probe.load(first.id))
      deepStrictEqual(await probe.ids(), [second.id])
      deepStrictEqual(await probe.ids(), [])
    },
  },
  {
    name: 'many claims at once give each saga to one',
    async run(probe) {
      const made = await Promise.all(Array.from({ length: 40 }, () => probe.inserted()))
      const claims = await Promise.all(Array.from({ length: 10 }, () => probe.ids({ count: 10 })))
      for (let left = await probe.ids(); left.length > 0; left = await probe.ids()) claims.push(left)
      deepStrictEqual(claims.flat().sort(), made.map(({ id }) => id).sort())
    },
  },
  {
    name: 'what was inserted by its runner is not due before its lease has run out',
    async run(probe) {
      const { id } = await probe.inserted({ runner: uuidv7(), wakeIn: SOON })
      deepStrictEqual(await probe.ids(), [])
      await probe.time.pass(SOON + 100)
      const { claimed } = await probe.claim()
      deepStrictEqual(
        claimed.map(({ saga, takenOver }) => [saga.id, takenOver, saga.takeovers]),
        [[id, true, 1]],
      )
    },
  },
  {
    name: 'what was taken over comes apart: some for the first time, one alone after that, and others only without them',
    async run(probe) {
      const silent = [await probe.inserted(), await probe.inserted(), await probe.inserted()]
      strictEqual((await probe.ids({ lease: 100 })).length, 3)
      const other = await probe.inserted()
      await probe.time.pass(200)
      deepStrictEqual(await probe.ids({ takeovers: 0 }), [other.id])
      strictEqual((await probe.ids({ takeovers: 2, lease: 100 })).length, 2)
      await probe.time.pass(200)
      // One is left of the first time; then those of the second, one by one.
      const sizes = []
      for (let i = 0; i < 4; i++) sizes.push((await probe.ids({ takeovers: 2 })).length)
      deepStrictEqual(sizes, [1, 1, 1, 0])
      const takeovers = await Promise.all(silent.map(async ({ id }) => (await probe.load(id)).takeovers))
      deepStrictEqual(takeovers.sort(), [1, 2, 2])
    },
  },
  {
    name: 'progress forgets takeovers, and other writes do not',
    async run(probe) {
      const { id } = await probe.inserted({ runner: uuidv7(), wakeIn: 50 })
      await probe.time.pass(100)
      const { runner } = await probe.claim()
      await probe.sagas.save(undefined, probe.change(id, 2, { runner, progress: false }))
      strictEqual((await probe.load(id)).takeovers, 1)
      await probe.sagas.save(undefined, probe.change(id, 3, { runner }))
      strictEqual((await probe.load(id)).takeovers, 0)
    },
  },
  {
    name: 'a write keeps the lease as it is while more than half of it is left, and renews it then',
    async run(probe) {
      const { id } = await probe.inserted()
      const { runner } = await probe.claim({ lease: 4000 })
      const before = (await probe.load(id)).wakeAt!
      await probe.sagas.save(undefined, probe.change(id, 2, { runner, lease: 4000 }))
      deepStrictEqual((await probe.load(id)).wakeAt, before)
      await probe.time.pass(2100)
      await probe.sagas.save(undefined, probe.change(id, 3, { runner, lease: 4000 }))
      ok((await probe.load(id)).wakeAt! > before)
    },
  },
  {
    name: 'what is released has no runner, and is due when it was said, or never',
    async run(probe) {
      const { id } = await probe.inserted()
      const { runner } = await probe.claim()
      const release = { runner, claim: 'release' as const, wakeIn: SOON }
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 2, release)), true)
      strictEqual((await probe.load(id)).runner, undefined)
      deepStrictEqual(await probe.ids(), [])
      await probe.time.pass(SOON + 100)
      const again = await probe.claim()
      deepStrictEqual([again.claimed[0]?.saga.id, again.claimed[0]?.takenOver], [id, false])
      const never = { runner: again.runner, claim: 'release' as const, wakeIn: undefined }
      await probe.sagas.save(undefined, probe.change(id, 4, never))
      strictEqual((await probe.load(id)).wakeAt, undefined)
      deepStrictEqual(await probe.ids(), [])
    },
  },
  {
    name: 'a person’s write leaves a claim with whoever has it, and wakes what nobody has',
    async run(probe) {
      const { id } = await probe.inserted()
      const { runner } = await probe.claim()
      const before = await probe.load(id)
      await probe.sagas.save(undefined, probe.change(id, 2, { claim: 'leave', wakeIn: 0 }))
      const after = await probe.load(id)
      deepStrictEqual([after.runner, after.wakeAt], [runner, before.wakeAt])
      await probe.sagas.save(undefined, probe.change(id, 3, { runner, claim: 'release', wakeIn: LEASE }))
      await probe.sagas.save(undefined, probe.change(id, 4, { claim: 'leave', wakeIn: 0 }))
      deepStrictEqual(await probe.ids(), [id])
    },
  },
  {
    name: 'what stays is due when it was, and whoever has it keeps it',
    async run(probe) {
      const { id } = await probe.inserted({ wakeIn: LEASE })
      const before = (await probe.load(id)).wakeAt
      const stay = { claim: 'stay' as const, wakeIn: 0 }
      strictEqual(await probe.sagas.save(undefined, probe.change(id, 1, stay)), true)
      const after = await probe.load(id)
      deepStrictEqual([after.runner, after.wakeAt, after.version], [undefined, before, 2])
      deepStrictEqual(await probe.ids(), [])
      const claimed = await probe.inserted()
      const { runner } = await probe.claim()
      const until = (await probe.load(claimed.id)).wakeAt
      strictEqual(await probe.sagas.save(undefined, probe.change(claimed.id, 2, stay)), true)
      const kept = await probe.load(claimed.id)
      deepStrictEqual([kept.runner, kept.wakeAt], [runner, until])
    },
  },
  {
    name: 'what is held is not claimed, whoever had it',
    async run(probe) {
      const { id } = await probe.inserted()
      await probe.claim({ lease: 100 })
      const { state } = probe.change(id, 2)
      await probe.sagas.save(undefined, probe.change(id, 2, { state: held(state), claim: 'leave' }))
      await probe.time.pass(200)
      deepStrictEqual(await probe.ids(), [])
      strictEqual((await probe.load(id)).held, 'look')
      deepStrictEqual(
        (await probe.sagas.list({ attention: true }, {})).map((found) => found.id),
        [id],
      )
      // It goes on, and its runner had stopped without a word.
      await probe.sagas.save(undefined, probe.change(id, 3, { state, claim: 'leave', wakeIn: 0 }))
      const { claimed } = await probe.claim()
      deepStrictEqual(
        claimed.map(({ takenOver }) => takenOver),
        [true],
      )
      deepStrictEqual(await probe.sagas.list({ attention: true }, {}), [])
    },
  },
  {
    name: 'renewing returns those that are still one’s own',
    async run(probe) {
      const [first, second] = [await probe.inserted(), await probe.inserted()]
      const { runner } = await probe.claim({ lease: SOON })
      const claims = [first, second].map(({ id }) => ({ id, runner }))
      deepStrictEqual([...(await probe.sagas.extend(claims, LEASE))].sort(), [first.id, second.id].sort())
      await probe.time.pass(SOON + 100)
      deepStrictEqual(await probe.ids(), [])
      await probe.sagas.save(undefined, probe.change(second.id, 2, { runner, claim: 'release', wakeIn: 0 }))
      deepStrictEqual(await probe.sagas.extend([...claims, { id: uuidv7(), runner }], LEASE), [first.id])
      deepStrictEqual(await probe.sagas.extend([{ id: first.id, runner: uuidv7() }], LEASE), [])
    },
  },
  {
    name: 'it knows when the next one is due',
    async run(probe) {
      strictEqual(await probe.sagas.nextDue([definition]), undefined)
      await probe.inserted({ wakeIn: 50_000 })
      await probe.inserted({ wakeIn: 1000, definition: 'order@2#other' })
      const next = await probe.sagas.nextDue([definition])
      ok(next !== undefined && next > 40_000 && next <= 50_000, `${next}`)
      strictEqual(await probe.sagas.nextDue([definition], true), undefined)
      await probe.inserted({ wakeIn: 20_000, runner: uuidv7() })
      ok((await probe.sagas.nextDue([definition]))! <= 20_000)
      ok((await probe.sagas.nextDue([definition], true))! > 10_000)
      await probe.inserted()
      const since = await probe.sagas.nextDue([definition])
      ok(since !== undefined && since <= 0 && since > -30_000, `${since}`)
    },
  },
  {
    name: 'a claim leaves out what another is writing, and a second writer waits for the first',
    async run(probe) {
      const { id } = await probe.inserted()
      const open = await openTransaction(probe.work, async (tx) => {
        await probe.sagas.load(tx, id, true)
        return probe.sagas.save(tx, probe.change(id, 1, { claim: 'leave', wakeIn: 0 }))
      })
      deepStrictEqual(await probe.ids(), [])
      const second = probe.sagas.save(undefined, probe.change(id, 1))
      await open.commit()
      strictEqual(await second, false)
      deepStrictEqual(await probe.ids(), [id])
    },
  },
  {
    name: 'renewing does not wait for one that another is writing',
    async run(probe) {
      const [first, second] = [await probe.inserted(), await probe.inserted()]
      const { runner } = await probe.claim()
      const open = await openTransaction(probe.work, (tx) => probe.sagas.load(tx, first.id, true))
      try {
        const claims = [first, second].map(({ id }) => ({ id, runner }))
        const renewed = await probe.time.soon(probe.sagas.extend(claims, LEASE), 'renewed')
        ok(renewed.includes(second.id))
      } finally {
        await open.rollback()
      }
    },
  },
  {
    name: 'who listens is told of a saga that was started, and of one that was given back',
    async run(probe) {
      const listener = await probe.sagas.listen?.()
      if (listener === undefined) return
      const never = new AbortController().signal
      try {
        // The first wait may end at once: it was not listening before.
        const waits = async () => {
          for (;;) {
            await listener.wait(probe.time.patience * 10, never)
            if ((await probe.ids()).length > 0) return
          }
        }
        const told = waits()
        await probe.time.pass(50)
        const { id } = await probe.inserted()
        await probe.time.soon(told, 'it is told')
        const { runner } = await probe.load(id)
        const again = waits()
        await probe.time.pass(50)
        await probe.sagas.save(undefined, probe.change(id, 2, { runner, claim: 'release', wakeIn: 0 }))
        await probe.time.soon(again, 'it is told again')
      } finally {
        await listener.close()
      }
    },
  },
]
