import { errorSummary, telemetry, WaybillError } from '../core/index.ts'
import type { Sql } from '../drivers/sql/sql.ts'
import type { Leadership, Term } from '../outbox/leadership.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/**
 * The event that goes out alone after a crash. It is recorded in the term first: if this relay dies too, the next one
 * charges it.
 */
export class Probe {
  readonly #leadership: Pick<Leadership, 'recordProbe'>
  readonly #term: Term
  eventId: string | undefined

  constructor(leadership: Pick<Leadership, 'recordProbe'>, term: Term) {
    this.#leadership = leadership
    this.#term = term
  }

  async record(eventId: string): Promise<void> {
    await this.#leadership.recordProbe(this.#term, eventId)
    this.eventId = eventId
  }

  /** It is settled. */
  async clear(): Promise<void> {
    this.eventId = undefined
    await this.#leadership.recordProbe(this.#term, undefined)
  }
}

/** Charges the event that the relay before had recorded when it died. */
export async function chargeProbe(on: Sql, names: OutboxNames, term: Term, attempts: number): Promise<void> {
  if (term.probe === undefined) return
  const values = [String(term.shard), term.epoch, term.probe, String(attempts)]
  const [row] = (await on.query(names.fill(sql['charge-noted']), values)).rows
  if (row === undefined) return
  const table = names.table.text
  const error = new WaybillError('CRASHED', 'the previous relay died while only this event was in flight')
  const tenant = (row['tenant'] as string | null) ?? undefined
  const about = { type: row['event_type'] as string, id: term.probe, topic: row['topic'] as string, tenant }
  const event = { flow: table, ...about, attempt: Number(row['attempts']) }
  telemetry['message.suspected'].publish({ ...event, error })
  if (row['state'] === 'dead') telemetry['message.dead'].publish({ ...event, table, reason: errorSummary(error) })
}
