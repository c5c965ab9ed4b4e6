import { errorSummary, Message, type RawMessage } from '../core/index.ts'
import { type Delivery, type Settlement, setTopic } from '../flow/index.ts'
import type { OutboxEntry, State } from '../outbox/admin.ts'
import type { Table } from './table.ts'

/** One event in the outbox. */
export interface Row {
  readonly eventId: string
  readonly tenant: string
  readonly topic: string
  readonly key: string | undefined
  /** Of a log, with its number. */
  message: RawMessage
  readonly size: number
  /** Both are given with its place, and never change. */
  sequence: number
  createdAt: number
  state: State
  attempts: number
  lastError: string | undefined
  availableAt: number | undefined
  publishedAt: number | undefined
  /** The token of the relay that has claimed it. */
  lease: string | undefined
  /** While an owner has it, who writes nothing to take it. */
  delivery: MemoryDelivery | undefined
  removed: boolean
}

export interface MemoryDelivery extends Delivery {
  readonly row: Row
}

/** A message of its own for each delivery: what one receiver puts beside it, the next must not find. */
export function deliveryOf(row: Row): MemoryDelivery {
  const { key, attempts, size, createdAt: created } = row
  return { message: messageOf(row), key, attempts, size, created, row }
}

export function messageOf({ message, topic }: Row): RawMessage {
  const data = typeof message.data === 'string' ? message.data : new Uint8Array(message.data)
  const copy: RawMessage = new Message(message, data, message.form)
  setTopic(copy, topic)
  return copy
}

export function entryOf(row: Row): Omit<OutboxEntry, 'cursor'> {
  const { eventId, state, tenant, topic, key, attempts, lastError, message } = row
  return {
    eventId,
    sequence: String(row.sequence),
    state,
    tenant,
    topic,
    key,
    type: message.type,
    version: message.version,
    attempts,
    lastError,
    createdAt: new Date(row.createdAt),
    availableAt: dateOf(row.availableAt),
    publishedAt: dateOf(row.publishedAt),
  }
}

function dateOf(time: number | undefined): Date | undefined {
  return time === undefined ? undefined : new Date(time)
}

/** The longest delay. What is longer has no date. */
const MAX_DELAY = 100 * 365 * 86_400_000

/** What a settlement makes of a row. */
export function settleRow(table: Table, row: Row, settlement: Settlement, deletes: boolean): void {
  switch (settlement.kind) {
    case 'done':
      row.lastError = undefined
      row.publishedAt = table.now()
      table.become(row, 'published')
      if (deletes) table.remove(row)
      break
    case 'retry':
      if (settlement.charged) row.attempts++
      row.lastError = errorSummary(settlement.error)
      table.become(row, 'retrying', table.now() + Math.min(settlement.after, MAX_DELAY))
      break
    case 'dead':
      row.attempts++
      row.lastError = settlement.reason
      table.become(row, 'dead')
      break
    case 'release':
      table.become(row, 'ready')
  }
}
