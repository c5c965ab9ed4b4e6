import type { Mutation } from '../../scripts/mutations/mutation.ts'

/** Faults of reading a log: an event that is skipped is missing from every view for good. */
export const mutations: Mutation[] = [
  {
    name: 'a look ends when the first of its writers has ended',
    file: 'src/postgres/log-bound.ts',
    find: 'look.writers.size === 0 && look.upTo > this.safe',
    replace: 'look.upTo > this.safe',
    test: 'test/postgres/log-bound.test.ts',
    expects: 'no further than before, while one that was seen then has not ended',
  },
  {
    name: 'what was seen outlives a server',
    file: 'src/postgres/log-bound.ts',
    find: '    this.safe = 0n\n    this.#looks = []',
    replace: '',
    test: 'test/postgres/log-bound.test.ts',
    expects: 'nothing outlives a server',
  },
  {
    name: 'a writer is waited for only from its commit on',
    file: 'src/postgres/sql.generated.ts',
    find: 'THEN pg_sequence_last_value(seqrelid)',
    replace: 'THEN GREATEST((SELECT max(sequence) FROM {{outbox}}), (SELECT max(sequence) FROM {{archive}}))',
    test: 'test/postgres/log.test.ts',
    expects: 'a writer is waited for from when its number was drawn',
    needs: ['postgres', 'pgbouncer'],
  },
  {
    name: 'those who write are not waited for',
    file: 'src/postgres/sql.generated.ts',
    find: "AND mode = 'RowExclusiveLock' AND granted\n",
    replace: "AND mode = 'RowShareLock' AND granted\n",
    test: 'test/postgres/log-torture.test.ts',
    expects: 'gives every committed event once and in order',
    needs: ['postgres'],
  },
  {
    name: 'a reader keeps all connections of a small pool',
    file: 'src/postgres/log.ts',
    find: 'count: 2',
    replace: 'count: -2',
    test: 'test/projection/clients.test.ts',
    expects: 'a pool of 2',
    needs: ['postgres'],
  },
  {
    name: 'a replay of a log moves every row of an id back',
    file: 'src/postgres/sql.generated.ts',
    find: 'SELECT DISTINCT ON (event.event_id) event.ctid',
    replace: 'SELECT event.ctid',
    test: 'test/postgres/log.test.ts',
    expects: 'replayed once, as it was last',
    needs: ['postgres'],
  },
]
