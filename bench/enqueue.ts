/**
 * What an event costs the transaction that writes it: with pgbench, so that no client hides it, by the statement that
 * the package itself sends. `--quick` for a look.
 */
import { pairedRatio, summary } from './support/measure.ts'
import { Contest, fill, say } from './support/pg-contest.ts'
import { cpuOf } from './support/pg-cpu.ts'
import { enqueueScript, pgbenchRate, plainScript, type Script } from './support/pg-pgbench.ts'
import { ratioGoal } from './support/pg-rounds.ts'
import { type Bench, type Row, round } from './support/report.ts'

const CLIENTS = 32
const BUSINESS = `INSERT INTO orders (customer, total, note) VALUES (1, 12.5, 'Leave it with the neighbours, please.')`
const TABLES = `CREATE TABLE orders (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer int NOT NULL, total numeric NOT NULL, note text
);
CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL)`

export const bench: Bench = async ({ quick }) => {
  const pairs = quick ? 3 : 10
  const seconds = quick ? 3 : 8
  const contest = await Contest.open({ peers: false })
  const { server } = contest
  try {
    await server.sql('postgres', 'CREATE DATABASE enqueue')
    await server.sql('enqueue', TABLES)
    const bytes = await rowBytes(contest)
    const scripts: Record<string, () => Promise<Script>> = {
      'business write only': async () => ({ script: `BEGIN;\n${BUSINESS};\nCOMMIT;\n`, variables: {} }),
      'with plain insert': async () => plainScript({ bytes, before: BUSINESS }),
      'with event': () => enqueueScript({ wake: 'flag', before: BUSINESS }),
      'with event, no wake-up': () => enqueueScript({ wake: 'off', before: BUSINESS }),
    }
    const names = Object.keys(scripts)
    const rates: Record<string, number[]> = Object.fromEntries(names.map((name) => [name, []]))
    const costs: Record<string, number[]> = Object.fromEntries(names.map((name) => [name, []]))
    for (let i = 0; i < pairs; i++) {
      for (let j = 0; j < names.length; j++) {
        const name = names[(i + j) % names.length]!
        await server.sql('enqueue', 'TRUNCATE orders, plain, outbox')
        await server.sql('enqueue', 'CHECKPOINT')
        const before = cpuOf(server.pid) ?? Number.NaN
        const rate = await pgbenchRate(server, 'enqueue', await scripts[name]!(), { clients: CLIENTS, seconds })
        const cost = ((cpuOf(server.pid) ?? Number.NaN) - before) / (rate * seconds)
        rates[name]!.push(rate)
        costs[name]!.push(cost)
        say(`${i + 1}/${pairs} ${name}: ${Math.round(rate)} transactions/s, server CPU ${round(cost)} µs each`)
      }
    }
    const results: Row[] = names.map((transaction) => ({
      transaction,
      'per second': Math.round(summary(rates[transaction]!).median),
      'server µs': round(summary(costs[transaction]!).median),
      connections: CLIENTS,
      rounds: pairs,
      how: transaction.startsWith('with event') ? `pgbench -M prepared, ${bytes} bytes a row` : 'pgbench -M prepared',
    }))
    const event = rates['with event']!
    const goals = [
      ratioGoal('enqueue.with_event/plain_insert', 0.8, pairedRatio(event, rates['with plain insert']!)),
      ratioGoal('enqueue.wakeup/none', 0.95, pairedRatio(event, rates['with event, no wake-up']!)),
    ]
    return { results, goals, versions: contest.versions }
  } finally {
    await contest.close()
  }
}

/** How many bytes of data one event's row holds, so that the plain insert can carry the same. */
async function rowBytes({ server }: Contest): Promise<number> {
  await fill(server.url('enqueue'), 1)
  const { rows } = await server.sql('enqueue', 'SELECT pg_column_size(event.*) AS bytes FROM outbox event LIMIT 1')
  const header = 24
  return rows[0].bytes - header
}
