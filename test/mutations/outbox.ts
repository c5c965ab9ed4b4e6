import type { Mutation } from '../../scripts/mutations/mutation.ts'

const QUARANTINE = 'src/outbox/quarantine.ts'
const test = 'test/outbox/quarantine.test.ts'

/** Faults of what relays of every store share, and of the columns they read. */
export const mutations: Mutation[] = [
  {
    name: 'expired events are claimed beside what is in progress',
    file: QUARANTINE,
    find: 'return inProgress > 0 ? 0 : Math.min(count, this.#size)',
    replace: 'return Math.min(count, this.#size)',
    test,
    expects: 'beside what is in progress',
  },
  {
    name: 'a quarantine never lets others go on',
    file: QUARANTINE,
    find: 'this.#othersWait = this.#active = false',
    replace: 'this.#othersWait = true',
    test,
    expects: 'that take long',
  },
  {
    name: 'a column is enqueued, and the statements know nothing of it',
    file: 'src/postgres/columns.ts',
    find: "published_at: { type: 'timestamptz', nullable: true }",
    replace: "published_at: { type: 'timestamptz', nullable: true, enqueued: true }",
    test: 'test/postgres/columns.test.ts',
    expects: 'writes what is enqueued',
  },
  {
    name: 'scopes share their terms',
    file: 'src/postgres/leadership.ts',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    find: "within: ` AND scope = '${scope}'`",
    replace: "within: ''",
    test: 'test/postgres/conformance-pglite.test.ts',
    expects: 'scopes know nothing of each other',
  },
  {
    name: 'a store in memory has one scope',
    file: 'src/memory/store.ts',
    find: 'this.#scopes.get(scope) ?? new MemoryLeadership(this.#clock)',
    replace: 'this.outbox.leadership',
    test: 'test/memory/conformance.test.ts',
    expects: 'scopes know nothing of each other',
  },
]
