import { expect, test } from 'vitest'
import { Reject } from '../../src/index.ts'
import { saga } from '../../src/saga/index.ts'
import { crashMatrix } from '../../src/testing/index.ts'

/** A service that keeps what was done under each key: done once, undone once, and not done after its undo. */
class Service {
  readonly done = new Map<string, number>()
  readonly undone = new Set<string>()
  total = 0

  do(key: string, amount: number): number {
    if (this.undone.has(key)) throw new Reject('it was undone before')
    if (!this.done.has(key)) this.total += amount
    this.done.set(key, amount)
    return amount
  }

  undo(key: string): void {
    this.undone.add(key)
    this.total -= this.done.get(key) ?? 0
    this.done.delete(key)
  }
}

const setup = () => ({ stock: new Service(), money: new Service(), carrier: new Service(), ended: [] as string[] })
type Deps = ReturnType<typeof setup>

const define = ({ stock, money, carrier, ended }: Deps) =>
  saga<{ total: number }>('order', { version: 1 })
    .step('reserve', (c) => stock.do(c.key, 1), { undo: (c) => stock.undo(c.key) })
    .step('charge', (c) => money.do(c.key, c.input.total), {
      undo: (c) => money.undo(c.key),
      check: (c) => money.done.get(c.key),
    })
    .sleep('pause', '1m')
    .transaction(
      'confirm',
      (_c, tx: { onRollback(undo: () => void): void }) => {
        ended.push('confirmed')
        tx.onRollback(() => ended.splice(ended.lastIndexOf('confirmed'), 1))
        return 1
      },
      {
        undo: (_c, tx) => {
          ended.push('reopened')
          tx.onRollback(() => ended.splice(ended.lastIndexOf('reopened'), 1))
        },
      },
    )
    .step('book', (c) => carrier.do(c.key, 1), { undo: (c) => carrier.undo(c.key), unknown: 'undo' })
    .onEnd((c, tx) => {
      ended.push(c.status)
      tx.onRollback(() => ended.splice(ended.lastIndexOf(c.status), 1))
    })

function invariant({ stock, money, carrier, ended }: Deps, { status }: { status: string }): void {
  const all = status === 'completed'
  expect(['completed', 'compensated']).toContain(status)
  expect([stock.total, money.total, carrier.total]).toEqual(all ? [1, 30, 1] : [0, 0, 0])
  const confirmed = ended.filter((one) => one === 'confirmed').length
  expect(confirmed).toBeLessThanOrEqual(1)
  expect(ended.filter((one) => one === 'reopened').length).toBe(all ? 0 : confirmed)
  expect(ended.at(-1)).toBe(status)
  expect(ended.filter((one) => one === 'completed' || one === 'compensated')).toHaveLength(1)
}

test('an order saga survives every crash and failure', { timeout: 120_000 }, async () => {
  const runs = await crashMatrix(define, { setup, input: { total: 30 }, invariant })
  expect(runs).toContain('all goes well, dies after run charge #1')
  expect(runs).toContain('book is refused, dies before undo reserve #1')
  expect(runs).toContain('all goes well, dies before commit #1')
  expect(runs).toContain('book is refused, dies after save #4')
  expect(runs).toContain('all goes well, charge does: later')
  expect(runs.length).toBeGreaterThan(150)
})

test('a service that forgets its keys is found out', { timeout: 120_000 }, async () => {
  const careless = ({ stock, money }: Deps) =>
    saga<{ total: number }>('careless', { version: 1 })
      .step('reserve', (c) => stock.do(c.key, 1), { undo: (c) => stock.undo(c.key) })
      .step(
        'charge',
        (c) => {
          money.total += c.input.total
        },
        {
          undo: (c) => {
            money.total -= c.input.total
          },
        },
      )
  const holds = ({ stock, money }: Deps, { status }: { status: string }) => {
    expect([stock.total, money.total]).toEqual(status === 'completed' ? [1, 30] : [0, 0])
  }
  const found = crashMatrix(careless, { setup, input: { total: 30 }, invariant: holds })
  await expect(found).rejects.toMatchObject({ code: 'CRASH_MATRIX' })
  await expect(found).rejects.toThrow(/all goes well, dies after run charge #1/)
  await expect(found).rejects.toThrow(/charge does: twice/)
})
