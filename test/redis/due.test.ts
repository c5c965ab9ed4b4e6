import { expect, test } from 'vitest'
import { event, type Message } from '../../src/core/index.ts'
import { Cleaner, type OutboxReader, Relay } from '../../src/outbox/index.ts'
import { type DueOptions, dueEventId, redisDue } from '../../src/redis/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { describeWith, service } from '../support/services.ts'
import { outboxOn, shardedOn } from './outbox-support.ts'
import { ioredis, keysOf, reader, until } from './support.ts'

const TicketExpired = event<{ ticket: string }>('ticket.expired')
const ago = (ms: number) => new Date(Date.now() - ms)
const ahead = (ms: number) => new Date(Date.now() + ms)

for (const server of ['redis', 'redis6']) {
  describeWith([server], `due-time events on ${server}`, () => {
    const url = () => service(server).url
    const setup = (options: Partial<DueOptions> = {}) => {
      const { db, outbox } = outboxOn(ioredis(url()))
      const due = redisDue({ outbox, ...options })
      const expired = ({ id }: { id: string }) => TicketExpired({ ticket: id })
      const decide = (id: string, at: Date, more = {}) => due.decide({ id, at }, expired({ id }), more)
      return { db, outbox, due, decide, expired, raw: reader(url()), base: `{${db.tag}}:outbox` }
    }
    const listed = async (outbox: ReturnType<typeof setup>['outbox']) =>
      (await outbox.admin.list({}, { limit: 1000 })).map(({ eventId }) => eventId)

    test('an intent is recorded with the business write, in one script, or not at all', async () => {
      const { db, due, raw } = setup()
      await db.withTransaction(async (tx) => {
        tx.set(db.key('ticket:1'), 'minted')
        await due.record(tx, { id: '1', at: ago(10) })
      })
      const failing = db.withTransaction(async (tx) => {
        tx.set(db.key('ticket:2'), 'minted')
        await due.record(tx, { id: '2', at: ago(10) })
        throw new Error('no')
      })
      await expect(failing).rejects.toThrow('no')
      expect((await due.find()).map(({ id }) => id)).toEqual(['1'])
      expect(await raw.exists(db.key('ticket:2'))).toBe(0)
    })

    test('due ones are found, the earliest first, no more than asked for, none that are not due', async () => {
      const { due } = setup()
      const times = [ago(1000), ago(3000), ago(2000), ahead(60_000)]
      for (const [i, at] of times.entries()) await due.record({ id: `t${i}`, at })
      expect((await due.find()).map(({ id }) => id)).toEqual(['t1', 't2', 't0'])
      expect(await due.find({ limit: 1 })).toEqual([{ id: 't1', at: times[1] }])
      expect((await due.find({ cutoff: ago(1500) })).map(({ id }) => id)).toEqual(['t1', 't2'])
      expect((await due.find({ cutoff: ahead(3_600_000) })).map(({ id }) => id)).toEqual(['t1', 't2', 't0'])
      const rest = await due.find({ after: { id: 't1', at: times[1]! } })
      expect(rest.map(({ id }) => id)).toEqual(['t2', 't0'])
    })

    test('enqueued: under a UUID v3 of id and time, once; deciding again is already-enqueued or unknown', async () => {
      const { outbox, due, decide } = setup()
      const at = ago(5)
      await due.record({ id: 'ticket 1', at })
      const { outcome, eventId } = await decide('ticket 1', at)
      expect(outcome).toBe('enqueued')
      expect(eventId).toBe(dueEventId('ticket 1', at))
      expect(eventId).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-3/)
      expect(dueEventId('ticket 1', ago(99))).not.toBe(eventId)
      const [entry] = await outbox.admin.list()
      expect(entry).toMatchObject({ eventId, key: 'ticket 1', type: 'ticket.expired', state: 'ready' })
      expect(await due.find()).toEqual([])
      expect((await decide('ticket 1', at)).outcome).toBe('already-enqueued')
      // A worker that died before it knew, and somebody who records it once more, change nothing.
      await due.record({ id: 'ticket 1', at })
      expect((await decide('ticket 1', at)).outcome).toBe('already-enqueued')
      expect(await listed(outbox)).toEqual([eventId])
      expect(await due.find()).toEqual([])
      expect((await decide('ticket 2', at)).outcome).toBe('unknown')
    })

    test('suppressed by revocation: by revoke, before or after it is recorded, and by a key of your own', async () => {
      const { db, outbox, due, decide, raw } = setup({ revokedBy: (id) => `${db1()}:revoked:${id}` })
      function db1(): string {
        return `{${db.tag}}`
      }
      const at = ago(5)
      await due.record({ id: '1', at })
      expect(await due.revoke('1')).toBe(true)
      expect(await due.revoke('2')).toBe(false)
      await due.record({ id: '2', at })
      await due.record({ id: '3', at })
      await db.withTransaction(async (tx) => tx.set(db.key('revoked:3'), '1'))
      await due.record({ id: '4', at })
      await db.withTransaction((tx) => due.revoke(tx, '4'))
      for (const id of ['1', '2', '3', '4']) expect((await decide(id, at)).outcome, id).toBe('suppressed')
      expect((await decide('1', at)).outcome).toBe('unknown')
      expect(await listed(outbox)).toEqual([])
      expect(await raw.zcard(`{${db.tag}}:outbox:due`)).toBe(0)
    })

    test('revocations and decisions that race: an event or a suppression, never both, and the answers agree', async () => {
      const { outbox, due, decide } = setup()
      const other = redisDue({ outbox })
      const at = ago(5)
      let enqueued = 0
      for (let n = 0; n < 200; n++) {
        const id = `t${n}`
        await due.record({ id, at })
        const decision = n % 2 ? decide(id, at) : undefined
        const revoked = other.revoke(id)
        const { outcome } = await (decision ?? decide(id, at))
        // Revoked while it was still to be decided: it must not have been enqueued.
        expect(outcome).toBe((await revoked) ? 'suppressed' : 'enqueued')
        if (outcome === 'enqueued') enqueued++
      }
      expect((await outbox.admin.stats()).states.ready.count).toBe(enqueued)
    })

    test('not due: neither before its time nor behind the cutoff', async () => {
      const { outbox, due, decide } = setup()
      const [later, recent] = [ahead(60_000), ago(100)]
      await due.record({ id: 'later', at: later })
      await due.record({ id: 'recent', at: recent })
      expect((await decide('later', later)).outcome).toBe('not-due')
      expect((await decide('later', later, { cutoff: ahead(120_000) })).outcome).toBe('not-due')
      expect((await decide('recent', recent, { cutoff: ago(10_000) })).outcome).toBe('not-due')
      expect(await listed(outbox)).toEqual([])
      expect((await decide('recent', recent, { cutoff: ago(1) })).outcome).toBe('enqueued')
    })

    test('cancel and reschedule: nothing comes of it, or it comes at its new time and not for the old one', async () => {
      const { db, outbox, due, decide } = setup()
      const at = ago(50)
      await due.record({ id: 'cancelled', at })
      expect(await due.cancel('cancelled')).toBe(true)
      expect(await due.cancel('cancelled')).toBe(false)
      expect((await decide('cancelled', at)).outcome).toBe('unknown')
      await due.record({ id: 'moved', at })
      const then = ahead(60_000)
      expect(await due.reschedule({ id: 'moved', at: then })).toBe(true)
      expect(await due.reschedule({ id: 'nobody', at: then })).toBe(false)
      expect(await decide('moved', at)).toMatchObject({ outcome: 'moved', at: then })
      expect((await decide('moved', then)).outcome).toBe('not-due')
      await db.withTransaction((tx) => due.reschedule(tx, { id: 'moved', at: ago(10) }))
      const [found] = await due.find()
      expect((await decide('moved', found!.at)).outcome).toBe('enqueued')
      await db.withTransaction(async (tx) => {
        await due.record(tx, { id: 'x', at })
        await due.cancel(tx, 'x')
      })
      expect(await due.find()).toEqual([])
      expect(await listed(outbox)).toHaveLength(1)
    })

    test('a worker tells what is due, through the relay; one whose event cannot be made stands in nobody’s way', async () => {
      const { outbox, due } = setup()
      for (let n = 0; n < 25; n++) await due.record({ id: `t${n}`, at: ago(100 - n) })
      await due.record({ id: 'later', at: ahead(3_600_000) })
      await due.revoke('t7')
      const worker = due.worker({
        batch: 4,
        event: ({ id }) => {
          if (id === 't3') throw new Error('no such ticket')
          return TicketExpired({ ticket: id })
        },
      })
      const seen = recordTelemetry(['due.decided', 'warning'])
      expect(await worker.runOnce()).toEqual({ enqueued: 23, already: 0, suppressed: 1, other: 0, failed: 1 })
      expect(await worker.runOnce()).toEqual({ enqueued: 0, already: 0, suppressed: 0, other: 0, failed: 1 })
      seen.stop()
      expect(seen.of('due.decided')[0]).toMatchObject({ enqueued: 23, suppressed: 1, failed: 1 })
      expect(seen.of('warning')[0]!.message).toMatch(/no such ticket/)
      const arrived: Message[] = []
      const to = async (message: Message) => void arrived.push(message)
      const relay = new Relay({ from: outbox as OutboxReader, to })
      await until('all have arrived', async () => {
        await relay.runOnce()
        return arrived.length === 23
      })
      await relay.stop()
      expect((await due.find()).map(({ id }) => id)).toEqual(['t3'])
    })

    test('an intent whose event the outbox refuses stands in nobody’s way: told once, tried again now and then', async () => {
      const outbox = shardedOn(() => ioredis(url()), 2)
      const due = redisDue({ outbox })
      const ids = ['big', 'none', 'elsewhere', ...Array.from({ length: 10 }, (_, n) => `t${n}`)]
      for (const [n, id] of ids.entries()) await due.record({ id, at: ago(100 - n) })
      const other = ids.find((id) => outbox.shards.of(id) !== outbox.shards.of('elsewhere'))!
      let mended = false
      const clock = new FakeClock()
      const worker = due.worker({
        batch: 2,
        clock,
        event: ({ id }): Message => {
          if (mended || !['big', 'none', 'elsewhere'].includes(id)) return TicketExpired({ ticket: id })
          if (id === 'big') return TicketExpired({ ticket: 1n as unknown as string })
          if (id === 'none') return undefined as unknown as Message
          return TicketExpired({ ticket: id }, { key: other })
        },
      })
      const seen = recordTelemetry(['warning'])
      expect(await worker.runOnce()).toMatchObject({ enqueued: 10, failed: 3 })
      mended = true
      // Not at once: it is not in the way meanwhile.
      expect(await worker.runOnce()).toMatchObject({ enqueued: 0, failed: 3 })
      await clock.advance(1000)
      expect(await worker.runOnce()).toMatchObject({ enqueued: 3, failed: 0 })
      seen.stop()
      expect(
        seen
          .of('warning')
          .map(({ message }) => message.split(' cannot')[0])
          .sort(),
      ).toEqual(['intent "big"', 'intent "elsewhere"', 'intent "none"'])
    })

    test('a worker that can decide nothing of what is due is failing, and says why', async () => {
      const { due } = setup()
      await due.record({ id: 't', at: ago(100) })
      let mended = false
      const clock = new FakeClock()
      const worker = due.worker({
        clock,
        event: ({ id }) => {
          if (!mended) throw new Error('there is no such ticket')
          return TicketExpired({ ticket: id })
        },
      })
      await worker.start()
      await until('it is failing', () => worker.status().state === 'failing')
      expect(worker.status().reason).toContain('nothing of what is due can be decided: Error: there is no such ticket')
      mended = true
      await until('it is running', async () => {
        await clock.advance(1000)
        return worker.status().state === 'running'
      })
      await worker.stop()
    })

    test('an event that is never made holds up nobody longer than 30 s, and is told', async () => {
      const { due } = setup()
      for (const [n, id] of ['stuck', 'a', 'b'].entries()) await due.record({ id, at: ago(100 - n) })
      const clock = new FakeClock()
      let asked = false
      const worker = due.worker({
        clock,
        event: ({ id }) => {
          asked ||= id === 'stuck'
          return id === 'stuck' ? new Promise<never>(() => {}) : TicketExpired({ ticket: id })
        },
      })
      const seen = recordTelemetry(['warning'])
      const round = worker.runOnce()
      await until('it waits for it', () => asked)
      await clock.advance(30_000)
      expect(await round).toMatchObject({ enqueued: 2, failed: 1 })
      seen.stop()
      expect(seen.of('warning')).toMatchObject([{ message: expect.stringMatching(/"stuck".*within 30000 ms/) }])
    })

    test('a second one of the same outbox with a worker is warned of: each would decide the intents of both', async () => {
      const { outbox, due, expired } = setup()
      const told = recordTelemetry(['warning'])
      due.worker({ event: expired })
      due.worker({ event: expired })
      expect(told.of('warning')).toEqual([])
      redisDue({ outbox }).worker({ event: expired })
      told.stop()
      expect(told.of('warning')).toMatchObject([
        { where: due.name, message: expect.stringMatching(/two redisDue of one outbox have workers/) },
      ])
    })

    test('many workers do each intent once', async () => {
      const { outbox, due, expired } = setup()
      for (let n = 0; n < 60; n++) await due.record({ id: `t${n}`, at: ago(100) })
      const workers = Array.from({ length: 4 }, () => due.worker({ event: expired, batch: 7 }))
      const rounds = await Promise.all(workers.map((worker) => worker.runOnce()))
      expect(rounds.reduce((sum, { enqueued }) => sum + enqueued, 0)).toBe(60)
      expect(await listed(outbox)).toHaveLength(60)
    })

    test('a started worker comes back; lag leaves time for a revocation', async () => {
      const { outbox, due, expired } = setup()
      const worker = due.worker({ event: expired, every: 10, lag: 200 })
      await worker.start()
      await due.record({ id: 'soon', at: ahead(50) })
      await due.record({ id: 'revoked', at: ago(1) })
      await due.revoke('revoked')
      await until('both are decided', async () => (await due.find()).length === 0)
      await until('it was told', async () => (await listed(outbox)).length === 1)
      await worker.stop()
    })

    test('memory: decided intents and old revocations are gone', async () => {
      const { db, outbox, due, expired, raw, base } = setup({ remember: 1 })
      for (let n = 0; n < 20; n++) await due.record({ id: `t${n}`, at: ago(10) })
      for (let n = 0; n < 5; n++) await due.revoke(`t${n}`)
      expect(await due.clean()).toBe(0)
      await due.worker({ event: expired }).runOnce()
      await until('forgotten', async () => {
        await new Cleaner({ of: due }).runOnce()
        return (await raw.exists(`${base}:revoked`)) === 0
      })
      const relay = new Relay({ from: outbox as OutboxReader, to: async () => {} })
      await relay.runOnce()
      await relay.stop()
      await outbox.admin.clean({ retention: 0 })
      expect(await keysOf(raw, db.tag)).toEqual([`${base}:sequence`])
    })

    test('shards: an intent lives where its event goes', async () => {
      const outbox = shardedOn(() => ioredis(url()), 3)
      const due = redisDue({ outbox })
      for (let n = 0; n < 12; n++) await due.record({ id: `t${n}`, at: ago(20 - n) })
      expect((await due.find()).map(({ id }) => id)).toEqual(Array.from({ length: 12 }, (_, n) => `t${n}`))
      const worker = due.worker({ event: ({ id }) => TicketExpired({ ticket: id }), batch: 5 })
      expect(await worker.runOnce()).toMatchObject({ enqueued: 12 })
      expect((await outbox.admin.list()).map(({ key }) => key).sort()).toEqual(
        Array.from({ length: 12 }, (_, n) => `t${n}`).sort(),
      )
      const [id, other] = ['x', 'abcdefgh'.split('').find((key) => outbox.storeOf(key) !== outbox.storeOf('x'))!]
      const strange = TicketExpired({ ticket: 'x' }, { key: other })
      await expect(due.decide({ id: id!, at: ago(1) }, strange)).rejects.toMatchObject({ code: 'CROSSSLOT' })
      const wrong = Array.from({ length: 9 }, (_, n) => outbox.storeOf(`${n}`)).find(
        (store) => store !== outbox.storeOf('x'),
      )!
      const crossed = wrong.withTransaction((tx) => due.record(tx, { id: 'x', at: ago(1) }))
      await expect(crossed).rejects.toMatchObject({ code: 'CROSSSLOT' })
    })

    test('what is wrong is refused, and says why', async () => {
      const { outbox, due } = setup()
      await expect(due.record({ id: '', at: ago(1) })).rejects.toThrow(/id: "" is not allowed/)
      await expect(due.record({ id: 'x', at: new Date(Number.NaN) })).rejects.toThrow(/is not a date/)
      await expect(due.record({ id: 'x', when: ago(1) } as never)).rejects.toThrow(/unknown option "when"/)
      await expect(due.decide({ id: 'x', at: ago(1) }, {} as never)).rejects.toThrow(/is not an event/)
      expect(() => redisDue({ outbox, remembre: 1 } as never)).toThrow(/did you mean "remember"\?/)
      expect(() => due.worker({} as never)).toThrow(/give a function/)
      await expect(
        redisDue({ outbox, revokedBy: () => 'elsewhere' }).decide(
          { id: 'x', at: ago(1) },
          TicketExpired({ ticket: '' }),
        ),
      ).rejects.toMatchObject({ code: 'CROSSSLOT' })
    })
  })
}
