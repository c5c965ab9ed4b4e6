import { checkOptions, describe, WaybillError } from '../core/index.ts'
import type { Audit } from '../outbox/admin.ts'
import { change, unknownDefinition } from './client.ts'
import type { AnySaga } from './definition.ts'
import { endReason } from './drive.ts'
import { endingsOf, storeOf, unknown } from './endings.ts'
import { stored } from './json.ts'
import type { SagaAudit, SagaDatabase, SagaFilter, SagaPage, SagaRecord, StepRecord } from './port.ts'
import type { Command } from './state.ts'
import type { EndContext } from './step.ts'
import { resultsOf } from './work.ts'

/** The store, and the definitions whose sagas people look after. */
export interface SagaAdminOptions<Tx> {
  store: SagaDatabase<Tx>
  /** The definitions: what may be done with a saga depends on them. */
  sagas: readonly AnySaga<Tx>[]
}

/** A saga as a person sees it. Inputs and outputs are shown only on request. */
export type SagaView = Omit<SagaRecord, 'input' | 'steps'> & {
  readonly input?: unknown
  readonly steps: readonly (Omit<StepRecord, 'output'> & { readonly output?: unknown })[]
  /** What people did to it, oldest first. */
  readonly history: readonly SagaAudit[]
}

/** What a person found out about a step. */
export type Resolution = { readonly done: true; readonly output: unknown } | { readonly done: false }

/** Its work was done, and this is what it returned. */
export function done(output?: unknown): Resolution {
  return { done: true, output }
}

/** Its work was not done, or is not there any more. */
export const notDone: Resolution = { done: false }

/** What people ask of sagas, and do with them. Every action is written down with who did it and why. */
export class SagaAdmin<Tx = unknown> {
  readonly #db: SagaDatabase<Tx>
  readonly #sagas: ReadonlyMap<string, AnySaga<Tx>>

  constructor(options: SagaAdminOptions<Tx>) {
    checkOptions('saga admin', options, { store: true, sagas: true })
    storeOf(options.store, 'saga admin')
    this.#db = options.store
    this.#sagas = new Map(options.sagas.map((saga) => [saga.definition, saga]))
  }

  /** Newest first. `{ attention: true }`: those that wait for a person. */
  async list(filter: SagaFilter = {}, page: SagaPage = {}): Promise<readonly SagaView[]> {
    checkOptions('list', filter, { type: true, aggregate: true, status: true, attention: true })
    return (await this.#db.sagas.list(filter, page)).map((record) => view(record, [], false))
  }

  /** One saga with its steps and history. `data`: with its input and outputs. */
  async show(id: string, options: { data?: boolean } = {}): Promise<SagaView> {
    checkOptions('show', options, { data: true })
    const record = await this.#db.sagas.load(undefined, id)
    if (record === undefined) throw unknown(id)
    return view(record, await this.#db.sagas.audits(id), options.data === true)
  }

  /** Tries again now, with its whole time before it. What was held goes on as its status says; what failed is undone again. */
  retry(id: string, audit: Audit): Promise<void> {
    return this.#act(id, 'retry', audit, { type: 'retry' })
  }

  /** Says what a person found out about a step that nobody knew. */
  resolve(id: string, step: string, resolution: Resolution, audit: Audit): Promise<void> {
    const output = resolution.done ? stored(resolution.output, 'the output', 1024 * 1024).value : undefined
    const action = `resolve ${step} as ${resolution.done ? 'done' : 'not done'}`
    return this.#act(id, action, audit, { type: 'resolve', step, done: resolution.done, output })
  }

  /** Undoes what was done. Refused behind the point of no return. */
  compensate(id: string, audit: Audit): Promise<void> {
    return this.#act(id, 'compensate', audit, { type: 'compensate', reason: audit.note })
  }

  /** Nothing more happens to it until somebody retries. A step that is going on is finished and written down. */
  hold(id: string, audit: Audit): Promise<void> {
    return this.#act(id, 'hold', audit, { type: 'hold', reason: audit.note })
  }

  /** Ends it as failed, as it is: nothing is undone, and nobody need look at it any more. */
  end(id: string, audit: Audit): Promise<void> {
    return this.#act(id, 'end', audit, { type: 'end', reason: audit.note })
  }

  async #act(id: string, action: string, audit: Audit, command: Command): Promise<void> {
    const { by, note } = checked(audit)
    const after = await this.#db.withTransaction(async (tx) => {
      const record = await this.#db.sagas.load(tx, id, true)
      if (record === undefined) throw unknown(id)
      const saga = this.#sagas.get(record.definition)
      const free = command.type === 'hold' || command.type === 'end'
      if (saga === undefined && !free) throw unknownDefinition(id, record.definition)
      const state = await change(this.#db, tx, saga ?? { steps: [], ending: undefined }, record, command)
      if (command.type === 'end' && record.status !== 'failed' && state !== undefined && saga?.ending !== undefined) {
        const context: EndContext<unknown, unknown> = {
          id,
          input: record.input,
          status: 'failed',
          results: resultsOf(state),
          reason: endReason(state),
        }
        await saga.ending(context, tx)
      }
      // What changes nothing is written down too.
      await this.#db.sagas.audit(tx, { sagaId: id, by, action, note })
      return state
    })
    if (after !== undefined) endingsOf(this.#db.sagas).report(after)
  }
}

function checked(audit: Audit): Audit {
  checkOptions('audit', audit, { by: true, note: true })
  for (const name of ['by', 'note'] as const) {
    if (typeof audit?.[name] === 'string' && audit[name].trim() !== '') continue
    throw new WaybillError(
      'INVALID_OPTION',
      `${name}: ${describe(audit?.[name])} is not allowed; say who does this, and why`,
    )
  }
  return audit
}

function view({ input, steps, ...record }: SagaRecord, history: readonly SagaAudit[], data: boolean): SagaView {
  const shown = data ? steps : steps.map(({ output: _output, ...step }) => step)
  return { ...record, ...(data ? { input } : {}), steps: shown, history }
}
