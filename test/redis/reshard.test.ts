import { beforeAll, expect, test } from 'vitest'
import { classify, type Message } from '../../src/core/index.ts'
import { slotOf } from '../../src/drivers/redis/slot.ts'
import { type OutboxReader, Relay } from '../../src/outbox/index.ts'
import { redisDue } from '../../src/redis/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { admin, cluster } from '../support/redis-topologies.ts'
import { scale, topologyDrivers } from '../support/scale.ts'
import { describeWith } from '../support/services.ts'
import { outboxOn } from './outbox-support.ts'
import { until } from './support.ts'

let nodes: Awaited<ReturnType<typeof cluster>>
const clients = { ioredis: () => nodes.ioredis(), 'node-redis': () => nodes.nodeRedis() }

/** Moves a slot as `redis-cli --cluster reshard --cluster-replace` does: key by key, over what is there already. */
async function moveSlot(key: string, between: () => Promise<void>): Promise<void> {
  const slot = String(slotOf(key))
  const from = await nodes.masterOf(key)
  const to = nodes.nodes.find((node) => node !== from)!
  const [fromId, toId] = [from, to].map((node) => nodes.ids[nodes.nodes.indexOf(node)]!)
  await admin(to).call('cluster', 'setslot', slot, 'importing', fromId!)
  await admin(from).call('cluster', 'setslot', slot, 'migrating', toId!)
  await between()
  for (;;) {
    const keys = (await admin(from).call('cluster', 'getkeysinslot', slot, '1')) as string[]
    if (keys.length === 0) break
    await admin(from).call('migrate', to.host, String(to.port), '', '0', '10000', 'REPLACE', 'KEYS', ...keys)
    await between()
  }
  for (const node of [to, from]) await admin(node).call('cluster', 'setslot', slot, 'node', toId!)
}

describeWith(['redis'], 'a slot moves to another node under load', () => {
  beforeAll(async () => {
    nodes = await cluster()
  }, 60_000)

  for (const driver of topologyDrivers) {
    test(`${driver}: a unit of work is refused as a whole, though all its keys are still there`, async () => {
      const { db } = outboxOn(clients[driver](), {}, { timeout: 5000 })
      const key = db.key('k')
      await db.withTransaction(async (tx) => tx.set(key, 'old'))
      // What empties a key and fills it again would look for it on the other node.
      const unit = () =>
        db.withTransaction(async (tx) => {
          tx.del(key)
          tx.set(key, 'new')
        })
      let first = true
      await moveSlot(key, async () => {
        if (first) expect(classify(await unit().catch((error: unknown) => error))).toBe('down')
        first = false
      })
      expect(String(await db.connection.command(['get', key]))).toBe('old')
      await unit()
      expect(String(await db.connection.command(['get', key]))).toBe('new')
    })

    test(`${driver}: units of work, events and intents: nothing is lost, doubled, charged or applied in part`, async () => {
      const { db, outbox } = outboxOn(clients[driver](), {}, { timeout: 5000 })
      const due = redisDue({ outbox })
      const arrived: string[] = []
      const relay = new Relay({
        from: outbox as OutboxReader,
        to: async ({ id }: Message) => void arrived.push(id),
        lease: '30s',
        poll: 10,
        maxPoll: 20,
        outage: { min: 10, max: 50 },
      })
      await relay.start()
      const worker = due.worker({ event: ({ id }) => sample(1, { key: id }), every: 20 })
      await worker.start()
      const accepted = new Set<string>()
      const errors: unknown[] = []
      let going = true
      let numbers = 0
      const writer = async (name: string) => {
        while (going) {
          const event = sample(++numbers, { key: `key ${numbers % 5}` })
          // The same event until it is there: what was unknown may be there already.
          const write = () =>
            db.withTransaction(async (tx) => {
              const answer = await db.inbox.receive(tx, { subscriber: name, source: '/s', id: event.id })
              if (answer === 'done') return
              expect(answer, 'its own claim keeps nobody waiting').toBe('new')
              // Emptied and filled in one unit: a key that is gone meanwhile would be looked for on the other node.
              tx.del(db.key(`last:${name}`))
              tx.set(db.key(`last:${name}`), event.id)
              tx.sadd(db.key('ledger'), event.id)
              await outbox.enqueue(tx, event)
              await due.record(tx, { id: event.id, at: new Date() })
            })
          const failed = (error: unknown) => {
            errors.push(error)
            return 'failed'
          }
          await until('it is written', async () => (await write().catch(failed)) !== 'failed')
          accepted.add(event.id)
        }
      }
      const writers = ['a', 'b', 'c'].map(writer)
      const more = async (count: number) => {
        const had = accepted.size
        await until('events are accepted', () => accepted.size >= had + count)
      }
      const key = db.key('')
      for (let round = 0; round < scale({ test: 1, full: 3, torture: 20 }); round++) {
        await more(30)
        const from = await nodes.masterOf(key)
        await moveSlot(key, () => new Promise((resolve) => setTimeout(resolve, 30)))
        await more(30)
        expect(await nodes.masterOf(key)).not.toBe(from)
      }
      going = false
      await Promise.all(writers)
      await until('all have arrived', () => [...accepted].every((id) => arrived.includes(id)))
      await until('every intent has its event', () => arrived.length === 2 * accepted.size)
      await until('nothing is pending', async () => {
        const { ready, leased, held, retrying } = (await outbox.admin.stats()).states
        return [ready, leased, held, retrying].every(({ count }) => count === 0)
      })
      await Promise.all([relay.stop(), worker.stop()])
      expect(errors.filter((error) => classify(error) !== 'down').map(String)).toEqual([])
      const { states } = await outbox.admin.stats()
      const ledger = (await db.connection.command(['scard', db.key('ledger')])) as number
      expect({ ledger, dead: states.dead.count }).toEqual({ ledger: accepted.size, dead: 0 })
      expect(arrived.length).toBe(new Set(arrived).size)
      expect(states.published.count).toBe(arrived.length)
      const entries = await outbox.admin.list({}, { limit: 1000 })
      expect(entries.filter(({ attempts }) => attempts > 0)).toEqual([])
      expect(await outbox.repair().runOnce()).toEqual({ restored: 0, dropped: 0, released: 0, headed: 0 })
    })
  }
})
