import { ok, strictEqual } from 'node:assert/strict'
import { uuidv7 } from '../core/index.ts'
import { decide, evolve, type NewSaga, type SagaChange, type SagaState, type SagaStore, saga } from '../saga/index.ts'
import type { UnitOfWork } from '../store/index.ts'
import type { StoreFactory, StoreUnderTest, Time } from './store-probe.ts'

/** A store of sagas, and what the suite needs beside it. */
export interface SagaStoreUnderTest<Tx = unknown> extends StoreUnderTest {
  readonly work: UnitOfWork<Tx>
  readonly sagas: SagaStore<Tx>
}

/** Makes a store of sagas for the suite, fresh for each case. */
export type SagaStoreFactory<Tx = unknown> = StoreFactory<SagaStoreUnderTest<Tx>>

/** Long enough for a case, in milliseconds. */
export const LEASE = 60_000
const two = saga('order', { version: 1 })
  .step('reserve', () => 1)
  .step('charge', () => 2)
export const { definition, steps: plan } = two

/** One store of sagas for the time of one case, and what the cases do with it. */
export class SagaProbe {
  readonly work: UnitOfWork
  readonly sagas: SagaStore
  readonly time: Time

  constructor({ work, sagas }: SagaStoreUnderTest, time: Time) {
    this.work = work
    this.sagas = sagas
    this.time = time
  }

  new(changes: Partial<NewSaga> = {}): NewSaga {
    const id = changes.id ?? uuidv7()
    const type = changes.type ?? 'order'
    const begun: SagaState = { id, type, status: 'running', held: undefined, error: undefined, steps: [] }
    const state = decide(plan, begun, { type: 'begin' }).reduce(evolve, begun)
    const about = { type, definition, aggregate: undefined, tenant: undefined, traceparent: undefined }
    return { id, ...about, input: '{"n":1}', state, wakeIn: 0, runner: undefined, ...changes }
  }

  async inserted(changes: Partial<NewSaga> = {}): Promise<NewSaga> {
    const made = this.new(changes)
    strictEqual(await this.sagas.insert(undefined, made), true)
    return made
  }

  async claim(changes: { count?: number; takeovers?: number; lease?: number; definitions?: string[] } = {}) {
    const runner = uuidv7()
    const options = { definitions: [definition], count: 10, takeovers: 10, runner, lease: LEASE, ...changes }
    return { runner, claimed: await this.sagas.claim(options) }
  }

  async ids(changes: Parameters<SagaProbe['claim']>[0] = {}): Promise<string[]> {
    return (await this.claim(changes)).claimed.map(({ saga: { id } }) => id)
  }

  /** The first step is done, and the second intended. */
  change(id: string, version: number, changes: Partial<SagaChange> = {}): SagaChange {
    const { state } = this.new({ id })
    const after = decide(plan, state, { type: 'succeeded', step: 'reserve', output: { a: null } }).reduce(evolve, state)
    const rest = { claim: 'keep', wakeIn: undefined, lease: LEASE, progress: true } as const
    return { id, version, runner: undefined, state: after, steps: after.steps, ...rest, ...changes }
  }

  async load(id: string) {
    const found = await this.sagas.load(undefined, id)
    ok(found, 'the saga is there')
    return found
  }
}

/** The saga waits for a person. */
export const held = (state: SagaState): SagaState => ({ ...state, held: 'look' })
