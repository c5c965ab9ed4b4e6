import { describe, expect, test } from 'vitest'
import { event } from '../../src/index.ts'
import { type Command, next, saga } from '../../src/saga/index.ts'
import { undoKey } from '../../src/saga/state.ts'
import { given } from '../../src/testing/saga-given.ts'

const Ship = event<{ order: string }>('ship')
const Cancel = event<{ order: string }>('ship.cancel')
const Shipped = event<{ parcel: number }>('shipped')
const Refused = event('ship.refused')
const Cancelled = event('ship.cancelled')

const send = () => Ship({ order: 'a' })
const undo = () => Cancel({ order: 'a' })
const step = () => 1
const base = () => saga('order', { version: 1, aggregate: () => 'a' }).step('reserve', step, { undo: () => {} })
const request = (more: object = {}) =>
  base()
    .request('ship', { send, reply: Shipped, refused: Refused, undo, ...more } as never)
    .step('bill', step, { undo: () => {} })

const one = request()
const confirmed = request({ undone: Cancelled })
const reserved: Command = { type: 'succeeded', step: 'reserve', output: 1 }
const shipped: Command = { type: 'succeeded', step: 'ship', output: { parcel: 7 } }
const billed: Command = { type: 'succeeded', step: 'bill', output: 1 }
const refused: Command = { type: 'refused', step: 'ship', error: 'no' }
const expired: Command = { type: 'expired', step: 'ship', error: 'no answer' }
const undone = (name: string, undo?: number): Command => ({
  type: 'undone',
  step: name,
  ...(undo === undefined ? {} : { undo }),
})
const late = { type: 'Waiting', after: 300_000 } as const
const sent = { type: 'Sent', step: 'ship' } as const

describe('a request', () => {
  test('is sent with its intent, and waits five minutes', () => {
    given(one)
      .when(reserved)
      .then({ type: 'Done', step: 'reserve', output: 1 }, { type: 'Intended', step: 'ship' }, sent, late)
      .thenSteps({ reserve: 'completed', ship: 'pending' })
  })

  test('its reply goes on with the next step, in one decision', () => {
    given(one, reserved)
      .when(shipped)
      .then({ type: 'Done', step: 'ship', output: { parcel: 7 } }, { type: 'Intended', step: 'bill' })
  })

  test('a refusal undoes what came before it, and not itself', () => {
    given(one, reserved)
      .when(refused)
      .thenState({ status: 'compensating', error: 'ship: no' })
      .thenSteps({ reserve: 'compensating', ship: 'failed' })
  })

  test('no answer in time is the same transition as a refusal; but its work may be there, so it is undone too', () => {
    given(one, reserved)
      .when(expired)
      .then(
        { type: 'Tried', step: 'ship', error: 'no answer', spent: 300_000, known: false },
        { type: 'Turned', reason: 'ship: no answer' },
        { type: 'Undoing', step: 'ship' },
        sent,
        { type: 'Undone', step: 'ship' },
        { type: 'Undoing', step: 'reserve' },
      )
    expect(next(one.steps, given(one, reserved).state)).toMatchObject({ do: 'expire' })
  })

  test('retry sends again while its time lasts, then it is undone', () => {
    const retried = request({ unknown: 'retry', budget: '10m' })
    given(retried, reserved)
      .when(expired)
      .then({ type: 'Tried', step: 'ship', error: 'no answer', spent: 300_000, known: false }, sent, late)
    expect(given(retried, reserved, expired).state.steps[1]).toMatchObject({ status: 'pending', sends: 2, attempts: 1 })
    given(retried, reserved, expired).when(expired).thenState({ status: 'compensating' })
  })

  test('hold waits for a person, whose retry sends again', () => {
    const kept = request({ unknown: 'hold' })
    given(kept, reserved).when(expired).thenState({ status: 'running', held: 'ship is unknown: no answer' })
    given(kept, reserved, expired).when({ type: 'retry' }).then({ type: 'Resumed' }, sent, late)
  })

  test('with a check it is asked first: found is done, not found is what the policy says', () => {
    const checked = request({ check: () => undefined })
    const asked = given(checked, reserved, expired)
    expect(next(checked.steps, asked.state)).toMatchObject({ do: 'check' })
    asked.when(shipped).thenSteps({ reserve: 'completed', ship: 'completed', bill: 'pending' })
    asked.when({ type: 'absent', step: 'ship' }).thenState({ status: 'compensating' })
    const again = request({ check: () => undefined, unknown: 'check' })
    given(again, reserved, expired).when({ type: 'absent', step: 'ship' }).then(sent, late)
  })

  test("an operator's retry of one that waits sends it again, and its time begins anew", () => {
    given(one, reserved).when({ type: 'retry' }).then({ type: 'Resumed' }, sent, late)
  })

  test('one whose message could not be made was not sent: tried again later, or refused', () => {
    const failed: Command = {
      type: 'sendFailed',
      step: 'ship',
      error: 'bug',
      spent: 0,
      after: 1000,
      permanent: false,
    }
    const intended = given(one).state
    expect(intended.steps).toHaveLength(1)
    const before = { ...given(one, reserved).state }
    const steps = before.steps.map((one) => ({ ...one, sends: 0 }))
    expect(next(one.steps, { ...before, steps })).toMatchObject({ do: 'proceed' })
    given(one, reserved)
      .when({ ...failed, permanent: true })
      .thenState({ status: 'compensating' })
  })
})

describe('the undo of a request', () => {
  test('is over when it is sent, and the next one goes on in the same decision', () => {
    given(one, reserved, shipped, { type: 'refused', step: 'bill', error: 'no' }).when(undone('ship')).then()
    given(one, reserved, shipped)
      .when({ type: 'refused', step: 'bill', error: 'no' })
      .thenSteps({ reserve: 'compensating', ship: 'compensated', bill: 'failed' })
  })

  test('or when that is confirmed', () => {
    const waits = given(confirmed, reserved, expired)
    expect(waits.state.steps[1]).toMatchObject({ status: 'compensating', sends: 2, undos: 1 })
    expect(next(confirmed.steps, waits.state)).toMatchObject({ do: 'expire', step: { name: 'ship' } })
    waits.when(undone('ship', 1)).thenSteps({ reserve: 'compensating', ship: 'compensated' })
  })

  test('without an answer it is sent again with the same undo key; an hour later the saga has failed', () => {
    const waits = given(confirmed, reserved, expired)
    const again = given(confirmed, reserved, expired, expired)
    expect(again.state.steps[1]).toMatchObject({ status: 'compensating', sends: 3, undos: 1 })
    expect(undoKey(again.state.steps[1]!)).toBe(undoKey(waits.state.steps[1]!))
    const hour = Array.from({ length: 12 }, () => expired)
    given(confirmed, reserved, expired, ...hour, undone('reserve'))
      .when(undone('reserve'))
      .then()
      .thenState({ status: 'failed' })
      .thenSteps({ reserve: 'compensated', ship: 'compensation_failed' })
  })

  test('a failed one is sent again by an operator, and its late answer ends the saga', () => {
    const hour = Array.from({ length: 12 }, () => expired)
    const failed = [reserved, expired, ...hour, undone('reserve')]
    given(confirmed, ...failed)
      .when({ type: 'retry' })
      .then({ type: 'Reopened' }, sent, late)
    given(confirmed, ...failed)
      .when(undone('ship', 1))
      .thenState({ status: 'compensated' })
  })

  test('an operator resends one that waits', () => {
    given(confirmed, reserved, expired).when({ type: 'retry' }).then({ type: 'Resumed' }, sent, late)
  })
})

describe('late answers', () => {
  const compensated = [reserved, expired, undone('reserve')]

  test('a success after compensated reopens: the step is undone again, with a new key; twice is a no-op', () => {
    const before = given(one, ...compensated)
    before.when(shipped).thenState({ status: 'compensated', error: 'ship succeeded late' })
    const after = given(one, ...compensated, shipped)
    expect(after.state.steps[1]).toMatchObject({ status: 'compensated', undos: 2, sends: 3, executed: true })
    expect(undoKey(after.state.steps[1]!)).not.toBe(undoKey(before.state.steps[1]!))
    after.when(shipped).then()
  })

  test('with a confirmed undo it is compensating until that is confirmed; an old confirmation says nothing', () => {
    const ended = [reserved, expired, undone('ship', 1), undone('reserve')]
    given(confirmed, ...ended)
      .when(shipped)
      .thenState({ status: 'compensating' })
    given(confirmed, ...ended, shipped)
      .when(undone('ship', 1))
      .then()
    given(confirmed, ...ended, shipped)
      .when(undone('ship', 2))
      .thenState({ status: 'compensated' })
  })

  test('a success after failed goes back to compensating', () => {
    const hour = Array.from({ length: 12 }, () => expired)
    given(confirmed, reserved, expired, ...hour, undone('reserve'))
      .when(shipped)
      .thenState({ status: 'compensating' })
  })

  test('a success while it is being undone is undone in its turn', () => {
    given(confirmed, reserved, expired)
      .when(shipped)
      .then({ type: 'Done', step: 'ship', output: { parcel: 7 } }, { type: 'Undoing', step: 'ship' }, sent, late)
  })

  test('a success while held is only recorded', () => {
    given(one, reserved, { type: 'hold', reason: 'look' })
      .when(shipped)
      .then({ type: 'Done', step: 'ship', output: { parcel: 7 } })
  })

  test('late refusals and repeats are no-ops', () => {
    given(one, reserved, shipped).when(shipped).then()
    given(one, reserved, shipped).when(refused).then()
    given(one, ...compensated)
      .when(refused)
      .then()
    given(one, reserved, shipped, billed).when(shipped).then()
    given(one, reserved, refused).when(refused).then()
  })
})

describe('a message from outside', () => {
  const waiting = saga<{ id: string }>('paid', { version: 1, aggregate: ({ id }) => id })
    .step('bill', step)
    .request('payment', { reply: Shipped, correlate: ({ parcel }) => String(parcel), within: '1d' })
    .step('thank', step)
  const paid: Command = { type: 'succeeded', step: 'payment', output: 5 }
  const begun: Command = { type: 'succeeded', step: 'bill', output: 1 }

  test('is waited for without sending anything', () => {
    given(waiting)
      .when(begun)
      .then(
        { type: 'Done', step: 'bill', output: 1 },
        { type: 'Intended', step: 'payment' },
        { type: 'Waiting', after: 86_400_000 },
      )
    given(waiting, begun).when(paid).thenSteps({ bill: 'completed', payment: 'completed', thank: 'pending' })
  })

  test('an early one is kept, and counts when its step is reached', () => {
    given(waiting).when(paid).then({ type: 'Early', step: 'payment', output: 5 })
    const early = given(waiting, paid)
    expect(next(waiting.steps, early.state)).toMatchObject({ do: 'run', step: { name: 'bill' } })
    early.when(begun).then({ type: 'Done', step: 'bill', output: 1 }, { type: 'Intended', step: 'thank' })
    early.when(paid).then()
    // Its runner stops without a word: it is the open step that is unknown.
    early.when({ type: 'takenOver' }).thenSteps({ bill: 'unknown', payment: 'completed' })
  })

  test('one that comes while the saga is undone, or after that, and before its step was begun, is undone too', () => {
    const paying = saga<{ id: string }>('paid', { version: 1, aggregate: ({ id }) => id })
      .step('bill', step, { undo: () => {} })
      .request('payment', { reply: Shipped, correlate: ({ parcel }) => String(parcel), undo })
    const cancelled: Command = { type: 'compensate', reason: 'no' }
    const tried: Command = { type: 'unknown', step: 'bill', error: 'x', spent: 0, after: 1, permanent: false }
    given(paying, tried, cancelled).when(paid).thenSteps({ bill: 'compensating', payment: 'compensated' })
    const refused: Command = { type: 'refused', step: 'bill', error: 'no' }
    const over = given(paying, refused)
    expect(over.state.status).toBe('compensated')
    over.when(paid).thenState({ status: 'compensated', error: 'payment succeeded late' })
    over.when(paid).thenSteps({ bill: 'failed', payment: 'compensated' })
    given(paying, refused, paid).when(paid).then()
    // Nothing can be undone of it.
    given(waiting, refused).when(paid).then()
  })

  test('an early one behind the point of no return has not passed it', () => {
    const behind = saga<{ id: string }>('paid', { version: 1, aggregate: ({ id }) => id })
      .step('bill', step, { undo: () => {} })
      .pointOfNoReturn()
      .request('payment', { reply: Shipped, correlate: ({ parcel }) => String(parcel) })
    given(behind, paid).when({ type: 'compensate', reason: 'no' }).thenState({ status: 'compensating' })
    given(behind, begun, { type: 'expired', step: 'payment', error: 'late' })
      .when({ type: 'compensate', reason: 'no' })
      .refused('SAGA_REFUSED')
  })
})
