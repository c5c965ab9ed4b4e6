import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { DONE } from '../flow/index.ts'
import type { ReaderOptions } from '../outbox/index.ts'
import { dead, ids, type OutboxProbe, retry, sample, samples } from './outbox-probe.ts'
import type { StoreCase } from './store-probe.ts'

const SHORT = 800

function excludes(one: Partial<ReaderOptions>, other: Partial<ReaderOptions>) {
  return async (probe: OutboxProbe) => {
    const [first, second] = [probe.relay(one), probe.relay(other)]
    ok((await first.assignment()).length > 0)
    deepStrictEqual(await second.assignment(), [], 'it is assigned nothing while the other lives')
    await first.close()
    await probe.time.until(
      'it is assigned something when the other has left',
      async () => (await second.assignment()).length > 0,
    )
    deepStrictEqual(await first.assignment(), [], 'and keeps the other out now')
  }
}

/** Ways to read that keep each other out, and relays that share. */
export const modeCases: readonly StoreCase<OutboxProbe>[] = [
  {
    name: 'modes: an owner keeps out relays that compete',
    needs: ['owner', 'lease'],
    run: excludes({ reader: 'owner' }, { reader: 'lease' }),
  },
  {
    name: 'modes: relays that compete keep out an owner',
    needs: ['owner', 'lease'],
    run: excludes({ reader: 'lease' }, { reader: 'owner' }),
  },
  {
    name: 'modes: owners keep out those that share it in another number of parts',
    needs: ['owner', 'shards'],
    run: excludes({ shards: 2 }, { shards: 3 }),
  },
  {
    name: 'modes: a relay that dies keeps others out no longer than its lease',
    needs: ['owner', 'lease'],
    async run(probe) {
      const [first, second] = [probe.relay({ reader: 'lease', lease: SHORT }), probe.relay()]
      await first.assignment()
      first.clock.stop()
      await probe.time.until('the owner may read', async () => (await second.assignment()).length > 0)
    },
  },
  {
    name: 'modes: one that may choose is an owner, and joins relays that compete where there are any',
    needs: ['owner', 'lease'],
    async run(probe) {
      const alone = probe.relay({ reader: 'auto' })
      strictEqual((await alone.assignment())[0]!.features.holdsKeys, true)
      await alone.close()
      await probe.relay({ reader: 'lease' }).assignment()
      const joined = await probe.relay({ reader: 'auto' }).assignment()
      strictEqual(joined[0]!.features.holdsKeys ?? false, false)
    },
  },
  {
    name: 'modes: changing the way to read loses nothing and publishes nothing twice',
    needs: ['owner', 'lease'],
    async run(probe) {
      const published: string[] = []
      const drain = async (options: Partial<ReaderOptions>, count: number) => {
        const relay = probe.relay(options)
        const session = await relay.open()
        const taken = await relay.receive(session, count)
        strictEqual(await relay.settle(session, DONE, ...taken), 0)
        published.push(...ids(taken))
        await relay.nothing(session, 'nothing more', 50)
        await relay.close()
      }
      const keyed = [1, 2, 3].map((n) => sample(n, { key: 'a' }))
      const others = samples(5)
      const [rejected] = samples(1)
      await probe.enqueue([...keyed, rejected!, ...others])
      // The owner leaves one that waits for its retry, two that wait for that one, one dead and one unsettled.
      const owner = probe.relay()
      const session = await owner.open()
      await owner.settle(session, retry(1500), ...(await owner.receive(session, 1)))
      for (const delivery of await owner.receive(session, 5)) {
        if (delivery.message.id === rejected!.id) await owner.settle(session, dead(), delivery)
        else if (published.length < 3) {
          await owner.settle(session, DONE, delivery)
          published.push(delivery.message.id)
        }
      }
      await owner.close()
      // 3 keyed ones and the rest.
      await drain({ reader: 'lease' }, 3 + others.length - published.length)
      const late = samples(4, { key: 'a' })
      await probe.enqueue(late)
      await drain({ reader: 'owner' }, 4)
      await probe.enqueue(samples(2))
      await drain({ reader: 'lease' }, 2)
      strictEqual(new Set(published).size, published.length, 'nothing twice')
      deepStrictEqual(await probe.states(), { dead: 1, published: published.length })
    },
  },
  {
    name: 'modes: an owner gets what relays that competed had claimed when they died',
    needs: ['owner', 'lease'],
    async run(probe) {
      const events = samples(3)
      await probe.enqueue(events)
      const zombie = probe.relay({ reader: 'lease', lease: SHORT })
      const lost = await zombie.open()
      const taken = await zombie.receive(lost, 3)
      zombie.clock.stop()
      const owner = probe.relay()
      const session = await owner.open()
      const again = await owner.receive(session, 3)
      deepStrictEqual(ids(again).sort(), ids(events).sort())
      strictEqual(await zombie.settle(lost, DONE, ...taken), 3)
      strictEqual(await owner.settle(session, DONE, ...again), 0)
      deepStrictEqual(await probe.states(), { published: 3 })
    },
  },
  {
    name: 'shards: a relay alone has all, two have disjoint parts, and a part moves when its relay leaves',
    needs: ['owner', 'shards'],
    async run(probe) {
      const [first, second] = [probe.relay({ shards: 4 }), probe.relay({ shards: 4 })]
      const all = await first.assignment()
      strictEqual(all.length, 4)
      const names = async (relay: typeof first) => (await relay.assignment()).map(({ name }) => name)
      await second.assignment()
      const [one, two] = [await names(first), await names(second)]
      deepStrictEqual([one.length, two.length], [2, 2])
      deepStrictEqual([...one, ...two].sort(), all.map(({ name }) => name).sort())
      await first.close()
      strictEqual((await second.assignment()).length, 4)
    },
  },
  {
    name: 'shards: every event is in one shard, and all events of a key in the same',
    needs: ['owner', 'shards'],
    async run(probe) {
      const keyed = Array.from({ length: 60 }, (_, n) => sample(n, { key: `key ${n % 12}` }))
      const unkeyed = samples(60)
      await probe.enqueue([...keyed, ...unkeyed])
      const relay = probe.relay({ shards: 3 })
      const shardOf = new Map<string, string>()
      const got: string[] = []
      for (const source of await relay.assignment()) {
        const session = await relay.openSource(source)
        const taken = await relay.take(session!)
        got.push(...ids(taken))
        for (const { key } of taken) {
          if (key === undefined) continue
          strictEqual(shardOf.get(key) ?? source.name, source.name)
          shardOf.set(key, source.name)
        }
        for (const key of new Set(taken.map((delivery) => delivery.key))) {
          if (key === undefined) continue
          deepStrictEqual(
            ids(taken.filter((delivery) => delivery.key === key)),
            ids(keyed.filter((event) => event.key === key)),
          )
        }
      }
      deepStrictEqual(got.sort(), ids([...keyed, ...unkeyed]).sort())
      ok(new Set(shardOf.values()).size > 1, 'keys are spread')
    },
  },
  {
    name: 'shards: another number of shards later finds everything',
    needs: ['owner', 'shards'],
    async run(probe) {
      const events = Array.from({ length: 30 }, (_, n) => sample(n, { key: `key ${n % 5}` }))
      await probe.enqueue(events)
      const two = probe.relay({ shards: 2 })
      let done = 0
      for (const source of await two.assignment()) {
        const session = await two.openSource(source)
        const taken = await two.take(session!, { count: 3, bytes: 1_000_000 })
        await two.settle(session!, DONE, ...taken)
        done += taken.length
      }
      await two.close()
      const one = probe.relay()
      const rest = await one.receive(await one.open(), events.length - done)
      strictEqual(new Set(ids(rest)).size, events.length - done)
    },
  },
]
