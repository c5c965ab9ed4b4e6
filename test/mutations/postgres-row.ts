import type { Mutation } from '../../scripts/mutations/mutation.ts'

const file = 'src/postgres/sql.generated.ts'
const test = 'test/postgres/row.test.ts'
const needs = ['postgres']

/** Faults of what stands in a row, and of what the table refuses. */
export const mutations: Mutation[] = [
  {
    name: 'the table takes events without a payload, or with two',
    file,
    find: '(payload IS NULL) <> (payload_bytes IS NULL)',
    replace: 'true',
    test,
    expects: 'the table refuses',
    needs,
  },
  {
    name: 'the table takes states that nobody knows',
    file,
    find: `(state = ANY ('{ready,published,dead}')`,
    replace: '(true',
    test,
    expects: 'a state nobody knows',
    needs,
  },
  {
    name: 'a claim does not say since when',
    file,
    find: '  locked_at = clock_timestamp(),\n',
    replace: '',
    test,
    expects: 'since when',
    needs,
  },
  {
    name: 'an ack under a lease keeps the error of a try before',
    file,
    find: 'locked_at = NULL, last_error = NULL\nWHERE event_id = ANY',
    replace: 'locked_at = NULL\nWHERE event_id = ANY',
    test,
    expects: 'clears the error',
    needs,
  },
  {
    name: 'an ack of an owner keeps the error of a try before',
    file,
    find: `\n    last_error = CASE WHEN settled.becomes = 'published' THEN NULL ELSE COALESCE(settled.error, event.last_error) END`,
    replace: '\n    last_error = COALESCE(settled.error, event.last_error)',
    test,
    expects: 'clears the error',
    needs,
  },
  {
    name: 'what failed under a lease still belongs to its relay',
    file,
    find: '\n  lease = NULL,\n  locked_at = NULL\nFROM settled',
    replace: '\n  lease = event.lease\nFROM settled',
    test,
    expects: 'a retry: with the time',
    needs,
  },
  {
    name: 'every event is of version 1',
    file: 'src/postgres/event-row.ts',
    find: 'String(message.version)',
    replace: "'1'",
    test,
    expects: 'a column for everything',
    needs,
  },
  {
    name: 'a retry that is not charged spends an attempt',
    file: 'src/postgres/becoming.ts',
    find: '(charged ? 1 : 0)',
    replace: '(charged ? 1 : 1)',
    test,
    expects: 'spends no attempt',
    needs,
  },
  {
    name: 'ids that are too long for an inbox are hashed in another way',
    file: 'src/postgres/inbox.ts',
    find: "update(value, 'utf16le')",
    replace: "update(value, 'utf8')",
    test,
    expects: 'its hash',
    needs,
  },
  {
    name: 'what is ready is looked for among all that is not published',
    file,
    find: "ON {{outbox}} (sequence) WHERE state = 'ready'",
    replace: "ON {{outbox}} (sequence) WHERE state <> 'published'",
    test: 'test/postgres/claim-cost.test.ts',
    expects: 'cost the same',
    needs,
  },
]
