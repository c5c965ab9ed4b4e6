import { expect, test } from 'vitest'
import { event, type Message } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { saga } from '../../src/saga/index.ts'
import { crashMatrix } from '../../src/testing/index.ts'

const Charge = event<{ amount: number }>('charge.wanted')
const Charged = event<{ receipt: number }>('charge.done')
const Refund = event<object>('charge.refund')
const Refunded = event<object>('charge.refunded')
const Ship = event<object>('ship.wanted')
const Shipped = event<object>('ship.done')
const Cancel = event<object>('ship.cancel')

/** A bank and a carrier, each with its own database, and a barrier in it. */
function setup() {
  const db = memory()
  const deps = { db, stock: 0, money: 0, parcels: 0, barrier: true }
  return deps
}
type Deps = ReturnType<typeof setup>

const define = (deps: Deps) =>
  saga<{ total: number }>('order', { version: 1 })
    .request('charge', {
      send: (c) => Charge({ amount: c.input.total }),
      reply: Charged,
      undo: () => Refund({}),
      undone: Refunded,
      unknown: 'retry',
    })
    .request('ship', { send: () => Ship({}), reply: Shipped, undo: () => Cancel({}) })
    .transaction(
      'confirm',
      (_c, tx: { onRollback(undo: () => void): void }) => {
        deps.stock++
        tx.onRollback(() => deps.stock--)
      },
      {
        undo: (_c, tx) => {
          deps.stock--
          tx.onRollback(() => deps.stock++)
        },
      },
    )

function participant(message: Message, deps: Deps) {
  const { db } = deps
  const work = ({ ran }: { ran: boolean }) => {
    switch (message.type) {
      case 'charge.wanted':
        deps.money += 30
        return Charged({ receipt: 1 })
      case 'charge.refund':
        if (ran) deps.money -= 30
        return Refunded({})
      case 'ship.wanted':
        deps.parcels++
        return Shipped({})
      default:
        if (ran) deps.parcels--
        return undefined
    }
  }
  if (!deps.barrier) return work({ ran: true })
  return db.withTransaction((tx) => db.barrier(tx, message, work))
}

function invariant({ stock, money, parcels }: Deps, { status }: { status: string }): void {
  expect(['completed', 'compensated']).toContain(status)
  expect([stock, money, parcels]).toEqual(status === 'completed' ? [1, 30, 1] : [0, 0, 0])
}

test('requests and replies survive every crash, and every loss, repeat, delay and disorder of messages', async () => {
  const runs = await crashMatrix(define, { setup, input: { total: 30 }, invariant, participant })
  expect(runs).toContain('all goes well, request charge #1 is lost')
  expect(runs).toContain('all goes well, request ship #1 is overtaken')
  expect(runs).toContain('all goes well, reply ship.done #1 is very late')
  expect(runs).toContain('confirm is refused, undo charge #1 is twice')
  expect(runs.some((name) => name.startsWith('all goes well, dies before commit'))).toBe(true)
  expect(runs.length).toBeGreaterThan(80)
})

test('a participant without a barrier is found out', async () => {
  const careless = () => ({ ...setup(), barrier: false })
  const failing = crashMatrix(define, { setup: careless, input: { total: 30 }, invariant, participant })
  await expect(failing).rejects.toThrow(/request charge #1 is twice/)
})
