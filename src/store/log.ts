import { describe, type Message, WaybillError } from '../core/index.ts'
import type { LogToken } from '../projection/port.ts'
import type { EnqueueOptions } from './store.ts'

/** What an enqueue returned, as a token of this log. */
export function tokenOf(
  log: { readonly id: string; readonly incarnation: string | undefined },
  receipts: string | readonly string[],
): LogToken {
  const given = typeof receipts === 'string' ? [receipts] : receipts
  if (!Array.isArray(given) || given.length === 0) {
    throw new WaybillError(
      'INVALID_OPTION',
      `token: ${describe(receipts)} is not a receipt; give what enqueue returned`,
    )
  }
  const positions = given.map((receipt) => {
    if (typeof receipt === 'string' && /^\d{1,19}$/.test(receipt)) return BigInt(receipt)
    throw new WaybillError(
      'INVALID_OPTION',
      `token: ${describe(receipt)} is not a receipt of a log; give what enqueue of this outbox returned`,
    )
  })
  const { id, incarnation } = log
  return { log: id, incarnation, positions: positions.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0)) }
}

/** Why a log does not take what other outboxes take. */
export const REFUSED_BY_LOG = {
  availableAt:
    'is a log: it shows an event as soon as its transaction commits, so a delayed one would come before its time; enqueue it in an outbox that is not a log',
  deleteOnPublish:
    'is a log: published events are read from it later, and removed ones would be missing from it for good; leave deleteOnPublish out, and let the cleaner move them to the archive',
  archive:
    "is a log: one statement reads it together with its archive table, so archive files cannot be part of it, and events kept nowhere would be missing; leave archive out, or give archive: 'table'",
  asNew:
    'is a log: events under new ids would be new events in it, and projections would apply them a second time; replay them under their own ids',
  sequence:
    'is a log: it puts the number of an event on its message as the extension `sequence`, so that an event cannot have one of its own',
} as const

export function refusedByLog(outbox: string, what: keyof typeof REFUSED_BY_LOG): WaybillError {
  return new WaybillError('INVALID_OPTION', `${what}: ${outbox} ${REFUSED_BY_LOG[what]}`)
}

/** What other outboxes take, and a log does not. */
export function checkForLog(outbox: string, events: readonly Message[], options: EnqueueOptions): void {
  if (options.availableAt !== undefined) throw refusedByLog(outbox, 'availableAt')
  if (events.some((event) => event.extensions?.['sequence'] !== undefined)) throw refusedByLog(outbox, 'sequence')
}
