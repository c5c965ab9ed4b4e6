import { deepStrictEqual, notStrictEqual, rejects, strictEqual } from 'node:assert/strict'
import { Message } from '../core/index.ts'
import type { Context } from '../router/index.ts'
import { type Inbox, type InboxAnswer, type InboxKey, inbox, type UnitOfWork } from '../store/index.ts'
import type { Suite, SuiteOptions } from './conformance.ts'
import {
  openTransaction,
  refused,
  type StoreCase,
  type StoreFactory,
  type StoreUnderTest,
  storeSuite,
  type Time,
} from './store-probe.ts'

export interface InboxFeatures {
  /** Something could be mistaken for a transaction and is none: `pool`. */
  readonly refusesPool?: boolean
}

/** An inbox, and what the suite needs beside it. */
export interface InboxUnderTest<Tx = unknown> extends StoreUnderTest {
  readonly work: UnitOfWork<Tx>
  readonly inbox: Inbox<Tx>
  /** What a careless caller gives in place of a transaction, for `refusesPool`. */
  readonly pool?: unknown
}

/** Makes an inbox for the suite, fresh for each case. */
export type InboxStoreFactory<Tx = unknown> = StoreFactory<InboxUnderTest<Tx>, InboxFeatures>

class InboxProbe {
  readonly work: UnitOfWork
  readonly inbox: Inbox
  readonly pool: unknown
  readonly time: Time

  constructor({ work, inbox, pool }: InboxUnderTest, time: Time) {
    this.work = work
    this.inbox = inbox
    this.pool = pool
    this.time = time
  }

  /** In a transaction of its own. */
  receive(key: InboxKey): Promise<InboxAnswer> {
    return this.work.withTransaction((tx) => this.inbox.receive(tx, key))
  }
}

const key = (id: string, source = '/shop', subscriber = 'billing'): InboxKey => ({ subscriber, source, id })

/** What every Inbox must do, so that the effect of a message happens once. */
export function inboxStoreSuite<Tx>(factory: InboxStoreFactory<Tx>, options: SuiteOptions = {}): Suite {
  return storeSuite(
    {
      kind: 'inbox store',
      features: ['refusesPool'] satisfies (keyof InboxFeatures)[],
      cases,
      probe: (under: InboxUnderTest<Tx>, time) => new InboxProbe(under, time),
    },
    factory,
    options,
  )
}

const cases: readonly StoreCase<InboxProbe>[] = [
  {
    name: 'a message is new once, and done from then on',
    async run(probe) {
      strictEqual(await probe.receive(key('1')), 'new')
      for (let i = 0; i < 3; i++) strictEqual(await probe.receive(key('1')), 'done')
      strictEqual(await probe.receive(key('2')), 'new')
    },
  },
  {
    name: 'in one transaction too, and a duplicate leaves it usable',
    async run(probe) {
      await probe.work.withTransaction(async (tx) => {
        strictEqual(await probe.inbox.receive(tx, key('1')), 'new')
        strictEqual(await probe.inbox.receive(tx, key('1')), 'done')
        strictEqual(await probe.inbox.receive(tx, key('2')), 'new')
      })
      deepStrictEqual([await probe.receive(key('1')), await probe.receive(key('2'))], ['done', 'done'])
    },
  },
  {
    name: 'a rollback forgets: the message is new again',
    async run(probe) {
      const failure = new Error('the handler failed')
      for (let i = 0; i < 2; i++) {
        const failing = probe.work.withTransaction(async (tx) => {
          strictEqual(await probe.inbox.receive(tx, key('1')), 'new')
          throw failure
        })
        await rejects(failing, failure)
      }
      strictEqual(await probe.receive(key('1')), 'new')
    },
  },
  {
    name: 'two subscribers each have their own, and so has each source of an id',
    async run(probe) {
      const keys = [key('1'), key('1', '/other'), key('1', '/shop', 'shipping'), key('1', '/other', 'shipping')]
      for (const one of keys) strictEqual(await probe.receive(one), 'new')
      for (const one of keys) strictEqual(await probe.receive(one), 'done')
      // Nor are the three joined in a way that lets two of them run into each other.
      for (const one of [key('c', 'a b'), key('b c', 'a'), key('c","', 'a'), key('c', 'a","')]) {
        strictEqual(await probe.receive(one), 'new')
      }
    },
  },
  {
    name: 'ids and sources are any text, of any length',
    async run(probe) {
      const long = 'ü'.repeat(10_000)
      const ids = [long, `${long}x`, 'a\0b', 'a\0c', '\ud800', '\ud801', `'; DROP TABLE x; --`, '日本', ' ', '{"a":1}']
      for (const id of ids) strictEqual(await probe.receive(key(id)), 'new', 'each is another')
      for (const id of ids) strictEqual(await probe.receive(key(id)), 'done')
      strictEqual(await probe.receive(key('1', long)), 'new')
      strictEqual(await probe.receive(key('1', long)), 'done')
    },
  },
  {
    name: 'a duplicate at the same time is not new while the first may commit, and done when it has',
    async run(probe) {
      const first = await openTransaction(probe.work, (tx) => probe.inbox.receive(tx, key('1')))
      strictEqual(first.value, 'new')
      const second = probe.receive(key('1'))
      await probe.time.pass(50)
      await first.commit()
      notStrictEqual(await probe.time.soon(second, 'the second has an answer'), 'new')
      strictEqual(await probe.receive(key('1')), 'done')
    },
  },
  {
    name: 'a duplicate at the same time may be handled when the first has rolled back',
    async run(probe) {
      const first = await openTransaction(probe.work, (tx) => probe.inbox.receive(tx, key('1')))
      const second = probe.receive(key('1'))
      await probe.time.pass(50)
      await first.rollback()
      const answer = await probe.time.soon(second, 'the second has an answer')
      notStrictEqual(answer, 'done', 'nobody has handled it')
      strictEqual(await probe.receive(key('1')), answer === 'new' ? 'done' : 'new')
    },
  },
  {
    name: 'one that waits for another and is aborted is busy, and takes nothing with it',
    async run(probe) {
      const first = await openTransaction(probe.work, (tx) => probe.inbox.receive(tx, key('1')))
      const controller = new AbortController()
      const { signal } = controller
      let answer: InboxAnswer | undefined
      let begun = false
      const giveUp = new Error('told to give up')
      const second = probe.work.withTransaction(
        async (tx) => {
          begun = true
          answer = await probe.inbox.receive(tx, key('1'), signal)
          throw giveUp
        },
        { signal },
      )
      const ended = rejects(second, giveUp)
      await probe.time.until('it has asked', async () => begun)
      await probe.time.pass(50)
      controller.abort(giveUp)
      await probe.time.soon(ended, 'the second gave up')
      strictEqual(answer, 'busy')
      await first.rollback()
      strictEqual(await probe.receive(key('1')), 'new')
    },
  },
  {
    name: 'the key may be made from the whole message: two of one idempotency key are one, and others are not',
    async run(probe) {
      const made = ({ extensions }: Message) => extensions['idempotencykey'] as string | undefined
      const { wrap } = inbox(probe.inbox, { key: made })
      let handled = 0
      const handle = wrap(() => {
        handled++
      })
      const receive = (id: string, idempotencykey?: string) =>
        probe.work.withTransaction(async (tx) => {
          const extensions = idempotencykey === undefined ? {} : { idempotencykey }
          const message = new Message({ id, source: '/shop', type: 'order.placed', extensions }, {})
          const { signal } = new AbortController()
          await handle(message, { tx, router: 'billing', signal } as unknown as Context)
        })
      for (const [id, header] of [['1', 'a'], ['2', 'a'], ['3', 'b'], ['4'], ['4'], ['a']] as const) {
        await receive(id, header)
      }
      // The header stands for the id, so that the last one is known.
      strictEqual(handled, 3)
    },
  },
  {
    name: 'of many at once, one is new',
    async run(probe) {
      const answers = await Promise.all(Array.from({ length: 8 }, () => probe.receive(key('1'))))
      strictEqual(answers.filter((answer) => answer === 'new').length, 1)
    },
  },
  {
    name: 'a message that cannot be recognised is an error, and so is a subscriber without a name',
    async run(probe) {
      await refused(probe.receive(key('')), 'MALFORMED_MESSAGE', /id/)
      await refused(probe.receive(key('1', '')), 'MALFORMED_MESSAGE', /source/)
      await refused(probe.receive(key(undefined as unknown as string)), 'MALFORMED_MESSAGE')
      await refused(probe.receive(key('1', '/shop', '')), 'INVALID_OPTION', /subscriber/)
    },
  },
  {
    name: 'what is no transaction is refused, and nothing is remembered',
    needs: ['refusesPool'],
    async run(probe) {
      await refused(probe.inbox.receive(probe.pool, key('1')), 'NOT_A_TRANSACTION')
      strictEqual(await probe.receive(key('1')), 'new')
    },
  },
  {
    name: 'cleaning forgets what is older than the retention, so many at a time, and nothing else',
    async run(probe) {
      for (const id of ['1', '2', '3', '4', '5']) await probe.receive(key(id))
      strictEqual(await probe.inbox.clean({ retention: 3_600_000, limit: 100 }), 0)
      await probe.time.pass(100)
      strictEqual(await probe.inbox.clean({ retention: 50, limit: 2 }), 2)
      strictEqual(await probe.inbox.clean({ retention: 50, limit: 100 }), 3)
      strictEqual(await probe.receive(key('1')), 'new')
      strictEqual(await probe.inbox.clean({ retention: 3_600_000, limit: 100 }), 0)
      strictEqual(await probe.receive(key('1')), 'done')
    },
  },
]
