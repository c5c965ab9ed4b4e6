import { type Message, WaybillError } from '../core/index.ts'
import type { EnqueueOptions, Outbox } from './store.ts'
import type { UnitOfWork } from './unit-of-work.ts'

/** Something that remembers what happened to it until that is safely stored. */
export interface RecordsEvents {
  readonly recorded: readonly Message[]
  forget(events: readonly Message[]): void
}

/**
 * Events collected where the change happens, so that neither is forgotten: `class Order extends EventCollector`, or a
 * field of it.
 */
export class EventCollector implements RecordsEvents {
  #recorded: Message[] = []

  get recorded(): readonly Message[] {
    return [...this.#recorded]
  }

  record(event: Message): void {
    this.#recorded.push(event)
  }

  /** These only: what was recorded since stays. */
  forget(events: readonly Message[]): void {
    const published = new Set(events)
    this.#recorded = this.#recorded.filter((event) => !published.has(event))
  }
}

/**
 * Writes an entity's events into the outbox, in the current transaction of `unit`. They are forgotten after its commit
 * only: after a rollback the entity still has them. Saving twice writes once, since an event keeps its id.
 */
export async function saveEvents<Tx>(
  unit: Pick<UnitOfWork<Tx>, 'current' | 'afterCommit'>,
  outbox: Pick<Outbox<Tx>, 'enqueue'>,
  entity: RecordsEvents,
  options?: EnqueueOptions,
): Promise<void> {
  const tx = unit.current()
  if (tx === undefined) {
    throw new WaybillError(
      'NO_TRANSACTION',
      'saveEvents() writes in the current transaction, and there is none: call it in withTransaction()',
    )
  }
  const clear = await enqueueEvents(tx, outbox, entity, options)
  unit.afterCommit(clear)
}

/** The same in a transaction of your own. Call what it returns once that has committed. */
export async function enqueueEvents<Tx>(
  tx: Tx,
  outbox: Pick<Outbox<Tx>, 'enqueue'>,
  entity: RecordsEvents,
  options?: EnqueueOptions,
): Promise<() => void> {
  const events = entity.recorded
  if (events.length > 0) await outbox.enqueue(tx, events, options)
  return () => entity.forget(events)
}
