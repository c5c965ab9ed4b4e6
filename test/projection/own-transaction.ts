import { expect } from 'vitest'
import type { Message } from '../../src/index.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import { viewOf } from '../../src/projection/index.ts'
import { eventually } from '../support/wait.ts'
import { changed, created, itemAdded, orders, type World } from './support.ts'

/** The transactions of a library: `run` gets what `enqueue` takes, and what writes a note in the same transaction. */
export interface Library {
  transaction<T>(run: (tx: unknown, note: (text: string) => Promise<unknown>) => Promise<T>): Promise<T>
  close(): Promise<unknown>
}

/**
 * Enqueue and token inside a transaction of that library, and the view afterwards. `at.db` is a store of its own: the
 * one that writes has nothing but the library's connection to learn which log it writes to.
 */
export async function readsItsWrites(at: Pick<World, 'db' | 'pool' | 'rows' | 'projector'>, library: Library) {
  await at.pool.query('CREATE TABLE notes (text text PRIMARY KEY)')
  const writer = postgres({ pool: at.pool, outbox: { log: true } }) as unknown as Postgres<unknown>
  const notes = async () => (await at.pool.query('SELECT text FROM notes ORDER BY 1')).rows.map(({ text }) => text)
  const view = orders()
  const projector = await at.projector(at.db.log, [view], { poll: '10s' }).start()
  await eventually('it has been built', async () => (await at.db.projections.load(view))?.builtAt)
  const order = created('o1')
  const write = (note: string, ...events: Message[]) =>
    library.transaction(async (tx, write) => {
      await write(note)
      const token = writer.log.token(await writer.outbox.enqueue(tx, events))
      // It is not committed, so it is not there, whoever asks.
      const { answer } = await viewOf(at.db, view).waitFor(token, { timeout: 0 })
      return { token, answer }
    })

  const first = await write('first', order, itemAdded('o1', 5))
  expect(first.answer).not.toBe('reached')
  const { incarnation } = await at.db.log.head()
  expect(first.token).toEqual({ log: 'outbox', incarnation, positions: [1n, 2n] })
  expect(await projector.view(view).waitFor(first.token, { timeout: '30s' })).toEqual({ answer: 'reached' })
  expect(await at.rows()).toMatchObject([{ order_id: 'o1', amount: '15' }])

  // Not committed: neither the note, nor the event.
  const undone = library.transaction(async (tx, note) => {
    await note('undone')
    await writer.outbox.enqueue(tx, created('o2'))
    throw new Error('undone')
  })
  await expect(undone).rejects.toThrow('undone')

  // The same event again is the same write; one event alone goes another way.
  const again = await write('again', order, changed('o1', 'paid'))
  expect(again.token.positions[0]).toBe(1n)
  const single = await write('single', created('o3'))
  for (const { token } of [again, single]) {
    expect(await viewOf(at.db, view).waitFor(token, { timeout: '30s' })).toEqual({ answer: 'reached' })
  }
  expect(await at.rows()).toMatchObject([{ order_id: 'o1', status: 'paid', amount: '15' }, { order_id: 'o3' }])
  expect(await notes()).toEqual(['again', 'first', 'single'])
}
