import type { Mutation } from '../../scripts/mutations/mutation.ts'

const file = 'src/postgres/sql.generated.ts'
const test = 'test/postgres/claims.test.ts'
const SKIP = ' SKIP LOCKED'

/** Whoever picks rows that others pick too passes over locked ones. `at` is the text around one SKIP LOCKED. */
const waits = (who: string, at: string, expects: string): Mutation => {
  return {
    name: `${who} waits for a locked row`,
    file,
    find: at,
    replace: at.replace(SKIP, ''),
    test,
    expects,
    needs: ['postgres'],
  }
}

export const mutations: Mutation[] = [
  waits('a claim of ready events', `BY sequence\n  LIMIT (SELECT free FROM room) FOR UPDATE${SKIP}`, 'ready'),
  ...['scheduled', 'retrying'].map((state) =>
    waits(
      `a claim of ${state} events`,
      `state = '${state}' AND available_at <= (SELECT clock_timestamp()){{which}}
  ORDER BY available_at LIMIT (SELECT (free + 3) / 4 FROM room) FOR UPDATE${SKIP}`,
      state,
    ),
  ),
  waits(
    'a claim of held events',
    `'held'{{which}}\n  LIMIT (SELECT (free + 3) / 4 FROM room) FOR UPDATE${SKIP}`,
    'held',
  ),
  waits('a claim of expired leases', `LIMIT $5::text::int FOR UPDATE${SKIP}`, 'for the first time'),
  waits('a claim of leases expired again', `LEAST(1, $5::text::int) END FOR UPDATE${SKIP}`, 'run out again'),
  waits('cleaning', `BY published_at LIMIT $2::text::int FOR UPDATE${SKIP}\n))`, 'published events'),
  waits('archiving into a table', `FOR UPDATE${SKIP}\n), removed AS`, 'archive table'),
  waits('archiving into files', `FOR UPDATE${SKIP}\n), fitting AS`, 'into files'),
  waits('cleaning of ids', `BY created_at LIMIT $2::text::int FOR UPDATE${SKIP}\n`, 'ids of events'),
  waits('cleaning of an inbox', `LIMIT $2::int\n  FOR UPDATE${SKIP}`, 'inbox has seen'),
]
