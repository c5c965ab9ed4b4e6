import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { event, Router, transactional, type WaybillError } from '../../src/index.ts'
import { FakeClock, inboxStoreSuite, type Suite, unitOfWorkSuite } from '../../src/testing/index.ts'
import { consume, raw } from '../router/support.ts'
import { runSuite } from '../support/suite.ts'
import { Notebook, type Page } from './notebook-store.ts'

const Placed = event<{ n: number }>('order.placed')
const Invoiced = event<{ n: number }>('order.invoiced')

async function create() {
  const clock = new FakeClock()
  const db = new Notebook(clock)
  const words: string[] = []
  return {
    work: db,
    inbox: db.inbox,
    clock,
    advance: (ms: number) => clock.advance(ms),
    write: async (page: Page, word: string) => page.write(() => words.push(word)),
    words: async () => words,
    close: async () => {},
  }
}

/** A store written by nothing but docs/guides/write-a-store.md, which shows it. */
describe('a store made of a notebook', () => {
  const run = (title: string, suite: Suite) => describe(title, () => runSuite(suite))
  run('unit of work', unitOfWorkSuite({ name: 'notebook', create }))
  run('inbox', inboxStoreSuite({ name: 'notebook', create }))

  test('with transactional a handler’s events are in it, once', async () => {
    const db = new Notebook()
    const router = new Router('billing')
      .use(transactional(db))
      .on(Placed, ({ data }) => Invoiced(data, { key: 'a', tenant: 't' }))
    const order = raw(Placed({ n: 1 }))
    const first = await consume(router, [order])
    const second = await consume(router, [order])
    expect([...first.kinds, ...second.kinds]).toEqual(['done', 'done'])
    const [row, ...others] = db.outbox.rows.values()
    expect(others).toEqual([])
    expect([row!.topic, row!.message.data]).toEqual(['order.invoiced', '{"n":1}'])
    expect([row!.message.key, row!.message.tenant]).toEqual(['a', 't'])
  })

  test('what its helpers refuse is what every store refuses, and nothing is written', async () => {
    const db = new Notebook()
    const enqueue = (options: object, given = Placed({ n: 1 })) =>
      db.withTransaction((page) => db.outbox.enqueue(page, [Placed({ n: 2 }), given], options))
    const refused = async (work: Promise<unknown>) => work.then(String, ({ code }: WaybillError) => code)
    const codes = [
      await refused(enqueue({ kye: 'a' })),
      await refused(enqueue({ key: '' })),
      await refused(enqueue({ key: 'a\0b' })),
      await refused(enqueue({ key: 'k'.repeat(10_000) })),
      await refused(enqueue({}, { type: 'order.placed' } as never)),
    ]
    expect(codes).toEqual(['UNKNOWN_OPTION', 'INVALID_OPTION', 'INVALID_OPTION', 'TOO_LARGE', 'INVALID_OPTION'])
    expect(db.outbox.rows.size).toBe(0)
  })

  test('the guide shows this very code', () => {
    const guide = readFileSync(new URL('../../docs/guides/write-a-store.md', import.meta.url), 'utf8')
    const code = readFileSync(new URL('./notebook-store.ts', import.meta.url), 'utf8')
    const asUser = code
      .replaceAll("'../../src/index.ts'", "'waybill'")
      .replaceAll("'../../src/adapter.ts'", "'waybill/adapter'")
    const plain = (text: string) => text.replace(/\s+/g, ' ').trim()
    const shown = [...guide.matchAll(/```ts\n(.*?)```/gs)].map(([, text]) => plain(text!))
    expect(shown.join(' ')).toBe(plain(asUser))
  })
})
