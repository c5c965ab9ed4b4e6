import { describe, expect, test } from 'vitest'
import { type Command, next, saga } from '../../src/saga/index.ts'
import { undoKey } from '../../src/saga/state.ts'
import { given } from '../../src/testing/saga-given.ts'

const run = () => 1
const undo = () => {}
const check = () => undefined
const three = saga('order', { version: 1 })
  .step('reserve', run, { undo })
  .step('charge', run, { undo, check })
  .step('ship', run, { undo })

const succeeded = (step: string, output: unknown = 1): Command => ({ type: 'succeeded', step, output })
const refused = (step: string): Command => ({ type: 'refused', step, error: 'no' })
const unknown = (step: string, more: Partial<{ spent: number; permanent: boolean }> = {}): Command => ({
  type: 'unknown',
  step,
  error: 'reset',
  spent: 10,
  after: 500,
  permanent: false,
  ...more,
})
const undone = (step: string): Command => ({ type: 'undone', step })
const undoFailed = (step: string, more = {}): Command => ({ ...unknown(step, more), type: 'undoFailed' }) as Command
const compensate: Command = { type: 'compensate', reason: 'changed my mind' }
const retry: Command = { type: 'retry' }
const hold: Command = { type: 'hold', reason: 'look at it' }
const end: Command = { type: 'end', reason: 'done by hand' }
const resolve = (step: string, done: boolean): Command => ({
  type: 'resolve',
  step,
  done,
  output: done ? 7 : undefined,
})

const twoDone = [succeeded('reserve'), succeeded('charge')]
const all = [...twoDone, succeeded('ship')]
const compensating = [...twoDone, refused('ship')]
const compensated = [...compensating, undone('charge'), undone('reserve')]
const failed = [...compensating, undoFailed('charge', { permanent: true }), undone('reserve')]

describe('three steps', () => {
  test('the first intent comes with the beginning', () => {
    expect(given(three).state.steps).toMatchObject([{ name: 'reserve', status: 'pending', attempts: 0, undos: 0 }])
  })

  test('the result of one and the intent of the next are one decision', () => {
    given(three)
      .when(succeeded('reserve', { total: 3 }))
      .then({ type: 'Done', step: 'reserve', output: { total: 3 } }, { type: 'Intended', step: 'charge' })
  })

  test('the last result ends it', () => {
    given(three, ...twoDone)
      .when(succeeded('ship'))
      .then({ type: 'Done', step: 'ship', output: 1 }, { type: 'Ended', status: 'completed' })
  })

  test('a refused third step: its own undo does not run, the others in reverse order', () => {
    given(three, ...twoDone)
      .when(refused('ship'))
      .then(
        { type: 'Refused', step: 'ship', error: 'no' },
        { type: 'Turned', reason: 'ship: no' },
        { type: 'Undoing', step: 'charge' },
      )
    given(three, ...compensating)
      .when(undone('charge'))
      .then({ type: 'Undone', step: 'charge' }, { type: 'Undoing', step: 'reserve' })
    given(three, ...compensating, undone('charge'))
      .when(undone('reserve'))
      .then({ type: 'Undone', step: 'reserve' }, { type: 'Ended', status: 'compensated' })
      .thenSteps({ reserve: 'compensated', charge: 'compensated', ship: 'failed' })
  })

  test('a refused first step ends it at once: there is nothing to undo', () => {
    given(three).when(refused('reserve')).thenState({ status: 'compensated' }).thenSteps({ reserve: 'failed' })
  })

  test('the key is the same in every state of a step, the undo key another with each undo and not with its retries', () => {
    const intended = given(three, succeeded('reserve')).state.steps[1]!
    const undoing = given(three, ...compensating).state.steps[1]!
    expect(undoing.key).toBe(intended.key)
    const again = given(three, ...compensating, undoFailed('charge')).state.steps[1]!
    expect(undoKey(again)).toBe(undoKey(undoing))
    const held = given(three, ...twoDone, unknown('ship', { permanent: true }), undone('ship')).state
    const late = given(three, ...twoDone, unknown('ship', { permanent: true }), undone('ship'), succeeded('ship')).state
    expect(undoKey(late.steps[2]!)).not.toBe(undoKey(held.steps[2]!))
  })
})

describe('unknown', () => {
  const policies = saga('policies', { version: 1 })
    .step('first', run, { undo })
    .step('retry', run, { undo, unknown: 'retry' })

  const only = (options: object) =>
    saga('one', { version: 1 })
      .step('first', run, { undo })
      .step('one', run, { undo, ...options })
  const at = (options: object, ...more: Command[]) => given(only(options), succeeded('first'), ...more)

  test('by default it is tried again with the same key', () => {
    at({})
      .when(unknown('one'))
      .then({ type: 'Tried', step: 'one', error: 'reset', spent: 10, known: false }, { type: 'Waiting', after: 500 })
      .thenSteps({ first: 'completed', one: 'unknown' })
    expect(next(only({}).steps, at({}, unknown('one')).state)).toMatchObject({ do: 'run' })
  })

  test('with a check it is asked; when it is found it is done, when not it runs again', () => {
    const state = at({ check }, unknown('one')).state
    expect(next(only({ check }).steps, state)).toMatchObject({ do: 'check' })
    at({ check }, unknown('one')).when(succeeded('one', 5)).thenState({ status: 'completed' })
    const absent = at({ check }, unknown('one'), { type: 'absent', step: 'one' })
    expect(next(only({ check }).steps, absent.state)).toMatchObject({ do: 'run' })
    // It may have run although it was not found: then it is undone too.
    absent.when(compensate).thenState({ status: 'compensating' })
    const undoing = at({ check }, unknown('one'), { type: 'absent', step: 'one' }, compensate, { type: 'proceed' })
    expect(undoing.state.steps).toMatchObject([{ status: 'completed' }, { status: 'compensating' }])
  })

  test('unknown: undo runs its own undo at once, or when the check has not found it', () => {
    at({ unknown: 'undo' }).when(unknown('one')).thenSteps({ first: 'completed', one: 'compensating' })
    at({ unknown: 'undo', check }).when(unknown('one')).thenSteps({ first: 'completed', one: 'unknown' })
    at({ unknown: 'undo', check }, unknown('one'))
      .when({ type: 'absent', step: 'one' })
      .thenSteps({ first: 'completed', one: 'compensating' })
  })

  test('unknown: hold waits for a person, who is told why', () => {
    at({ unknown: 'hold' }).when(unknown('one')).thenState({ status: 'running', held: 'one is unknown: reset' })
    at({ unknown: 'hold', check }, unknown('one'))
      .when({ type: 'absent', step: 'one' })
      .thenState({ held: 'one is unknown: reset' })
  })

  test('a takeover finds an intent unknown: the policy of the step', () => {
    const takenOver: Command = { type: 'takenOver' }
    at({}).when(takenOver).thenSteps({ first: 'completed', one: 'unknown' })
    at({ unknown: 'undo' }).when(takenOver).thenSteps({ first: 'completed', one: 'compensating' })
    at({ unknown: 'hold' }).when(takenOver).thenState({ held: 'one is unknown: its runner stopped without a word' })
    expect(next(only({ check }).steps, at({ check }, takenOver).state)).toMatchObject({ do: 'check' })
    // What is given back in the middle of a step is unknown too; whoever has it next decides.
    at({ unknown: 'undo' }).when({ type: 'interrupted' }).thenSteps({ first: 'completed', one: 'unknown' })
  })

  test('a permanent error is not retried, and its own undo runs', () => {
    at({})
      .when(unknown('one', { permanent: true }))
      .thenSteps({ first: 'completed', one: 'compensating' })
  })

  test('the time budget, not a number of attempts', () => {
    const tries = Array.from({ length: 200 }, () => unknown('one', { spent: 10_000 }))
    expect(at({ budget: '1h' }, ...tries).state.status).toBe('running')
    const last = at({ budget: '1h' }, ...tries, unknown('one', { spent: 1_600_000 }))
    expect(last.state).toMatchObject({ status: 'compensating', error: 'one: reset' })
    // Time that does not count, because the service was away for all.
    const outage = Array.from({ length: 1000 }, () => unknown('one', { spent: 0 }))
    expect(at({ budget: '1s' }, ...outage).state.status).toBe('running')
  })

  test('while compensating, one that was under way is undone, whatever it said', () => {
    given(policies, succeeded('first'), compensate)
      .when(unknown('retry'))
      .thenSteps({ first: 'completed', retry: 'compensating' })
    given(policies, succeeded('first'), compensate)
      .when(succeeded('retry'))
      .thenSteps({ first: 'completed', retry: 'compensating' })
    given(policies, succeeded('first'), compensate)
      .when(refused('retry'))
      .thenSteps({ first: 'compensating', retry: 'failed' })
  })

  test('an intent that was never tried is not undone', () => {
    given(policies, succeeded('first'), compensate)
      .when({ type: 'proceed' })
      .thenSteps({ first: 'compensating', retry: 'pending' })
  })
})

describe('transactions, sleeps and the point of no return', () => {
  const whole = saga('whole', { version: 1 })
    .step('reserve', run, { undo })
    .transaction('confirm', run, { undo })
    .sleep('pause', '1h')
    .pointOfNoReturn()
    .step('ship', run)

  test('a transaction is never unknown: it is tried again, and what gave up has nothing to undo', () => {
    given(whole, succeeded('reserve'))
      .when(unknown('confirm'))
      .then({ type: 'Tried', step: 'confirm', error: 'reset', spent: 10, known: true }, { type: 'Waiting', after: 500 })
      .thenSteps({ reserve: 'completed', confirm: 'pending' })
    given(whole, succeeded('reserve')).when({ type: 'takenOver' }).then()
    given(whole, succeeded('reserve'))
      .when(unknown('confirm', { permanent: true }))
      .thenSteps({ reserve: 'compensating', confirm: 'failed' })
    given(whole, succeeded('reserve'), unknown('confirm'), compensate)
      .when({ type: 'proceed' })
      .thenSteps({ reserve: 'compensating', confirm: 'pending' })
  })

  test('a sleep is an intent that is given back until its time', () => {
    given(whole, succeeded('reserve'))
      .when(succeeded('confirm'))
      .then(
        { type: 'Done', step: 'confirm', output: 1 },
        { type: 'Intended', step: 'pause' },
        { type: 'Waiting', after: 3_600_000 },
      )
    const sleeping = given(whole, succeeded('reserve'), succeeded('confirm'))
    expect(next(whole.steps, sleeping.state)).toMatchObject({ do: 'wake' })
    sleeping.when(compensate).thenState({ status: 'compensating' })
  })

  const beyond = [succeeded('reserve'), succeeded('confirm'), succeeded('pause')]

  test('behind the point of no return a refusal, a permanent error and a spent budget are held', () => {
    given(whole, ...beyond)
      .when(refused('ship'))
      .thenState({ status: 'running', held: 'ship was refused behind the point of no return: no' })
    given(whole, ...beyond)
      .when(unknown('ship', { permanent: true }))
      .thenState({ status: 'running', held: 'ship gave up behind the point of no return: reset' })
    given(whole, ...beyond)
      .when(unknown('ship', { spent: 3_600_000 }))
      .thenState({ status: 'running', held: 'ship gave up behind the point of no return: reset' })
  })

  test('it cannot be compensated from there, and a retry of a refused step runs it again', () => {
    given(whole, ...beyond)
      .when(compensate)
      .refused('SAGA_REFUSED')
    given(whole, ...beyond, refused('ship'))
      .when(compensate)
      .refused('SAGA_REFUSED')
    given(whole, ...beyond, succeeded('ship'))
      .when(compensate)
      .refused('SAGA_REFUSED')
    given(whole, ...beyond, end)
      .when(retry)
      .refused('SAGA_REFUSED')
    const again = given(whole, ...beyond, refused('ship'), retry)
    expect(again.state).toMatchObject({ status: 'running', held: undefined })
    expect(next(whole.steps, again.state)).toMatchObject({ do: 'run', step: { name: 'ship' } })
    again.when(succeeded('ship')).thenState({ status: 'completed' })
  })
})

describe('undo', () => {
  test('one that fails is tried again with the same undo key, until its budget is spent', () => {
    given(three, ...compensating)
      .when(undoFailed('charge'))
      .then({ type: 'UndoTried', step: 'charge', error: 'reset', spent: 10 }, { type: 'Waiting', after: 500 })
    given(three, ...compensating)
      .when(undoFailed('charge', { spent: 3_600_000 }))
      .thenSteps({ reserve: 'compensating', charge: 'compensation_failed', ship: 'failed' })
  })

  test('an undo that gives up leaves the saga failed, after the others were undone', () => {
    expect(given(three, ...failed).state).toMatchObject({
      status: 'failed',
      steps: [{ status: 'compensated' }, { status: 'compensation_failed' }, { status: 'failed' }],
    })
  })
})

/** The table of transitions in the design: command × state. A dash is a command that cannot come there. */
describe('the table', () => {
  const heldRunning = [succeeded('reserve'), hold]
  const heldBack = [...compensating, hold]
  const status = (...history: Command[]) => {
    const { status, held } = given(three, ...history).state
    return held === undefined ? status : `${status}, held`
  }

  test('success, not seen before', () => {
    expect(status(succeeded('reserve'))).toBe('running')
    expect(given(three, succeeded('reserve'), compensate, succeeded('charge')).state.steps[1]!.status).toBe(
      'compensating',
    )
    expect(status(...heldRunning, succeeded('charge'))).toBe('running, held')
    expect(given(three, ...heldRunning, succeeded('charge')).state.steps).toHaveLength(2)
    given(three, ...all)
      .when(succeeded('ship'))
      .then()
    // It was refused, or given up and undone: it has happened after all.
    for (const over of [compensated, failed]) {
      given(three, ...over)
        .when(succeeded('ship'))
        .then(
          { type: 'Done', step: 'ship', output: 1 },
          { type: 'Turned', reason: 'ship succeeded late' },
          { type: 'Undoing', step: 'ship' },
        )
    }
  })

  test('success again, late refusal', () => {
    for (const history of [twoDone, compensating, [...twoDone, hold], all, compensated, failed]) {
      given(three, ...history)
        .when(succeeded('reserve'))
        .then()
      given(three, ...history)
        .when(refused('reserve'))
        .then()
    }
  })

  test('refused', () => {
    expect(status(...twoDone, refused('ship'))).toBe('compensating')
    given(three, succeeded('reserve'), compensate).when(refused('charge')).thenState({ status: 'compensating' })
    given(three, ...heldRunning)
      .when(refused('charge'))
      .then({ type: 'Refused', step: 'charge', error: 'no' })
    // What was recorded while it was held is acted upon when it goes on.
    const goesOn = given(three, ...heldRunning, refused('charge'), retry)
    goesOn.when({ type: 'proceed' }).thenSteps({ reserve: 'compensating', charge: 'failed' })
    for (const over of [all, compensated, failed])
      given(three, ...over)
        .when(refused('ship'))
        .then()
  })

  test('undone, and an undo that gave up', () => {
    given(three, ...heldBack)
      .when(undone('charge'))
      .then({ type: 'Undone', step: 'charge' })
    given(three, ...compensated)
      .when(undone('charge'))
      .then()
    given(three, ...failed)
      .when(undone('charge'))
      .then({ type: 'Undone', step: 'charge' }, { type: 'Ended', status: 'compensated' })
  })

  test('due', () => {
    expect(next(three.steps, given(three).state)).toMatchObject({ do: 'run' })
    expect(next(three.steps, given(three, ...compensating).state)).toMatchObject({ do: 'undo' })
    for (const idle of [heldRunning, heldBack, all, compensated, failed]) {
      expect(next(three.steps, given(three, ...idle).state)).toEqual({ do: 'nothing' })
      given(three, ...idle)
        .when({ type: 'proceed' })
        .then()
    }
  })

  test('retry', () => {
    expect(status(...heldRunning, retry)).toBe('running')
    expect(status(...heldBack, retry)).toBe('compensating')
    expect(status(...twoDone, retry)).toBe('running')
    for (const over of [all, compensated])
      given(three, ...over)
        .when(retry)
        .refused('SAGA_REFUSED')
    given(three, ...failed)
      .when(retry)
      .thenState({ status: 'compensating' })
      .thenSteps({ reserve: 'compensated', charge: 'compensating', ship: 'failed' })
    // A retry of the same undo, so with its key.
    expect(given(three, ...failed, retry).state.steps[1]).toMatchObject({ undos: 1, spent: 0 })
  })

  test('compensate and cancel', () => {
    expect(status(...twoDone, compensate)).toBe('compensating')
    given(three, ...compensating)
      .when(compensate)
      .then()
    expect(status(...heldRunning, compensate)).toBe('compensating')
    expect(status(...heldBack, compensate)).toBe('compensating')
    expect(status(...all, compensate)).toBe('compensating')
    given(three, ...compensated)
      .when(compensate)
      .then()
    expect(status(...failed, compensate)).toBe('compensating')
  })

  test('resolve', () => {
    given(three).when(resolve('reserve', true)).thenSteps({ reserve: 'completed', charge: 'pending' })
    given(three, ...twoDone)
      .when(resolve('ship', false))
      .thenState({ status: 'compensating' })
    // Held: as left, the flag stays.
    given(three, ...heldRunning)
      .when(resolve('charge', true))
      .thenState({ held: 'look at it' })
      .thenSteps({ reserve: 'completed', charge: 'completed' })
    given(three, ...compensating)
      .when(resolve('charge', false))
      .thenSteps({
        reserve: 'compensating',
        charge: 'compensated',
        ship: 'failed',
      })
    for (const over of [all, compensated])
      given(three, ...over)
        .when(resolve('charge', true))
        .refused('SAGA_REFUSED')
    given(three, ...failed)
      .when(resolve('charge', false))
      .thenState({ status: 'compensated' })
    given(three, ...failed)
      .when(resolve('charge', true))
      .refused('SAGA_REFUSED')
    given(three).when(resolve('ship', true)).refused('SAGA_REFUSED')
    expect(() => given(three).when(resolve('chrage', true)).thenSteps({})).toThrow(
      'there is no such step; its steps are reserve, charge, ship',
    )
  })

  test('hold and end', () => {
    expect(status(hold)).toBe('running, held')
    expect(status(...compensating, hold)).toBe('compensating, held')
    given(three, ...heldRunning)
      .when(hold)
      .then()
    for (const over of [all, compensated, failed])
      given(three, ...over)
        .when(hold)
        .refused('SAGA_REFUSED')
    for (const alive of [[], compensating, heldRunning, heldBack, failed]) {
      given(three, ...alive)
        .when(end)
        .thenState({ status: 'failed', held: undefined, error: 'done by hand' })
    }
    for (const over of [all, compensated])
      given(three, ...over)
        .when(end)
        .refused('SAGA_REFUSED')
  })
})

describe('the end itself', () => {
  const atEnd = (more = {}): Command => ({ ...unknown('onEnd', more), type: 'endFailed' }) as Command
  // What its runner does when onEnd throws: the result is kept, the end is tried again.
  const stuck = given(three, ...twoDone, hold, succeeded('ship'), retry)

  test('an end that fails is tried again, and held when its time is up', () => {
    stuck.when(atEnd()).thenState({ status: 'running', held: undefined })
    stuck.when(atEnd({ permanent: true })).thenState({ held: 'onEnd failed: reset' })
    const again = given(three, ...twoDone, hold, succeeded('ship'), retry, atEnd())
    again.when(atEnd({ spent: 3_600_000 })).thenState({ held: 'onEnd failed: reset' })
    expect(next(three.steps, again.state)).toEqual({ do: 'proceed' })
    again.when({ type: 'proceed' }).then({ type: 'Ended', status: 'completed' })
  })

  test('it cannot be resolved: nobody can say that it is done but its own commit', () => {
    for (const done of [true, false]) {
      given(three, ...twoDone, hold, succeeded('ship'), retry, atEnd({ permanent: true }))
        .when({ type: 'resolve', step: 'onEnd', done, output: undefined })
        .refused('SAGA_REFUSED')
    }
  })
})
