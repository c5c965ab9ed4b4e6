import pg from 'pg'
import { type Delivery, OK, type Session } from '../../../src/adapter.ts'
import { fromStructured, toStructured } from '../../../src/cloudevents/index.ts'
import type { Publisher, Source } from '../../../src/index.ts'

/** A broker as small as can be that outlives its clients: a table of messages, removed when they are acked. */
export const BROKER_TABLE = 'CREATE TABLE broker (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message text)'

export function sqlBroker(url: string): Publisher {
  const pool = new pg.Pool({ connectionString: url, max: 2, allowExitOnIdle: true, idleTimeoutMillis: 100 })
  pool.on('error', () => {})
  return {
    name: 'sql broker',
    features: {},
    async publish(messages) {
      const values = [messages.map((message) => toStructured(message))]
      await pool.query('INSERT INTO broker (message) SELECT unnest($1::text[])', values)
      return messages.map(() => OK)
    },
    close: () => pool.end(),
  }
}

interface Taken extends Delivery {
  readonly place: string
}

/** One consumer at a time. What it took and did not ack comes again with the next session. */
export function sqlBrokerSource(pool: pg.Pool): Source<Taken> {
  return {
    name: 'sql broker',
    features: {},
    async open(): Promise<Session<Taken>> {
      let mark = '0'
      return {
        lost: new AbortController().signal,
        async take({ count }) {
          const { rows } = await pool.query('SELECT id, message FROM broker WHERE id > $1 ORDER BY id LIMIT $2', [
            mark,
            count,
          ])
          mark = rows.at(-1)?.id ?? mark
          return rows.map(({ id, message: text }) => {
            const message = fromStructured(text)
            return { message, key: message.key, attempts: 0, size: text.length, place: id }
          })
        },
        async settle(batch) {
          const done = batch.filter(([, { kind }]) => kind === 'done').map(([delivery]) => delivery.place)
          await pool.query('DELETE FROM broker WHERE id = ANY ($1::bigint[])', [done])
          return 0
        },
        async close() {},
      }
    },
  }
}
