import { deepStrictEqual, fail } from 'node:assert/strict'
import { WaybillError } from '../core/index.ts'
import { type AnySaga, type Command, decide, evolve, type SagaEvent, type SagaState } from '../saga/index.ts'

const ID = '00000000-0000-7000-8000-000000000001'

/** What a saga's machine makes of a command. */
export interface GivenSaga {
  readonly state: SagaState
  when(command: Command): WhenSaga
}

/** The middle of `given().when().then()`. */
export interface WhenSaga {
  /** These events, no others. */
  then(...events: readonly SagaEvent[]): WhenSaga
  /** The state afterwards has these parts. */
  thenState(parts: Partial<SagaState>): WhenSaga
  /** Each step's status afterwards. */
  thenSteps(statuses: Readonly<Record<string, string>>): WhenSaga
  /** It is refused with this code. */
  refused(code: string): void
}

/**
 * Tests of a saga's decisions, without a store, a clock or a call of its steps:
 *
 *     given(fulfilment, { type: 'succeeded', step: 'reserve', output: 1 })
 *       .when({ type: 'refused', step: 'charge', error: 'no money' })
 *       .thenSteps({ reserve: 'compensating', charge: 'failed' })
 */
export function given(saga: AnySaga, ...history: readonly Command[]): GivenSaga {
  const begun: SagaState = { id: ID, type: saga.name, status: 'running', held: undefined, error: undefined, steps: [] }
  const state = [{ type: 'begin' } as const, ...history].reduce(
    (before, command) => decide(saga.steps, before, command).reduce(evolve, before),
    begun,
  )
  return { state, when: (command) => outcome(saga, state, command) }
}

function outcome(saga: AnySaga, state: SagaState, command: Command): WhenSaga {
  let events: readonly SagaEvent[] = []
  let thrown: unknown
  try {
    events = decide(saga.steps, state, command)
  } catch (error) {
    thrown = error
  }
  const after = () => {
    if (thrown !== undefined) throw thrown
    return events.reduce(evolve, state)
  }
  const when: WhenSaga = {
    // biome-ignore lint/suspicious/noThenProperty: given, when, then are the words of the trade; nobody awaits this.
    then(...expected) {
      after()
      deepStrictEqual(events, expected)
      return when
    },
    thenState(parts) {
      const found = after()
      const picked = Object.fromEntries(Object.keys(parts).map((name) => [name, found[name as keyof SagaState]]))
      deepStrictEqual(picked, parts)
      return when
    },
    thenSteps(statuses) {
      deepStrictEqual(Object.fromEntries(after().steps.map(({ name, status }) => [name, status])), statuses)
      return when
    },
    refused(code) {
      if (!(thrown instanceof WaybillError)) fail(`it is refused with ${code}; it was ${String(thrown ?? 'allowed')}`)
      deepStrictEqual(thrown.code, code)
    },
  }
  return when
}
