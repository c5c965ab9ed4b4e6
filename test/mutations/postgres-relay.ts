import type { Mutation } from '../../scripts/mutations/mutation.ts'

const needs = ['postgres']
const SQL = 'src/postgres/sql.generated.ts'
const FENCES = 'test/postgres/faults/fences.test.ts'
const ZOMBIE = 'test/postgres/faults/zombie.test.ts'

/** Faults of the relay on PostgreSQL: each would lose, repeat or reorder events, and only when something goes wrong. */
export const mutations: Mutation[] = [
  {
    name: 'an owner that was taken over still publishes',
    file: SQL,
    find: `lease = NULL, locked_at = NULL
  WHERE sequence = ANY ($3::text::bigint[]) AND state = 'ready' AND EXISTS (SELECT 1 FROM term)`,
    replace: `lease = NULL, locked_at = NULL
  WHERE sequence = ANY ($3::text::bigint[]) AND state = 'ready'`,
    test: FENCES,
    expects: 'settles nothing as published',
    needs,
  },
  {
    name: 'an owner that was taken over still charges',
    file: SQL,
    find: `AND event.state NOT IN ('published', 'dead') AND EXISTS (SELECT 1 FROM term)`,
    replace: `AND event.state NOT IN ('published', 'dead')`,
    test: FENCES,
    expects: 'settles nothing as retrying',
    needs,
  },
  {
    name: 'the end of a term is compared with the time at which the statement began',
    file: SQL,
    find: `'settle-published': \`WITH term AS (
  SELECT 1 FROM {{terms}}
  WHERE shard = $1::text::int AND epoch = $2::text::bigint AND expires_at > clock_timestamp() FOR SHARE`,
    replace: `'settle-published': \`WITH term AS (
  SELECT 1 FROM {{terms}}
  WHERE shard = $1::text::int AND epoch = $2::text::bigint AND expires_at > now() FOR SHARE`,
    test: FENCES,
    expects: 'ends by the clock',
    needs,
  },
  {
    name: 'a lease is settled whoever holds it',
    file: SQL,
    find: 'WHERE event.event_id = settled.id AND event.lease = $1::text::uuid',
    replace: 'WHERE event.event_id = settled.id AND $1::text IS NOT NULL',
    test: FENCES,
    expects: 'claimed by another',
    needs,
  },
  {
    name: 'a takeover keeps the epoch',
    file: SQL,
    find: 'SET epoch = term.epoch + 1, holder',
    replace: 'SET epoch = term.epoch, holder',
    test: FENCES,
    expects: 'an epoch of its own',
    needs,
  },
  {
    name: 'a term can be taken while it lasts',
    file: SQL,
    find: `WHERE term.holder = '' OR term.holder = $1 OR term.expires_at <= clock_timestamp()`,
    replace: '',
    test: FENCES,
    expects: 'an epoch of its own',
    needs,
  },
  {
    name: 'what the holder before left behind is read too late',
    file: SQL,
    find: '\nFROM (SELECT count(*) FROM before) AS first',
    replace: '',
    test: FENCES,
    expects: 'is charged, and dead',
    needs,
  },
  {
    name: 'the note is not written',
    file: 'src/postgres/owner-source.ts',
    find: '    await this.#writeNote(delivery.eventId)\n',
    replace: '',
    test: FENCES,
    expects: 'notes each event',
    needs,
  },
  {
    name: 'the noted event is not charged',
    file: 'src/postgres/owner-source.ts',
    find: '    if (term.note !== undefined) await session.#charge(term.note)\n',
    replace: '',
    test: FENCES,
    expects: 'is charged, and dead',
    needs,
  },
  {
    name: 'what blocks a key is ignored',
    file: 'src/postgres/owner-scan.ts',
    find: '(row.blocked ? blocked : found).push(row)',
    replace: 'found.push(row)',
    test: 'test/postgres/owner.test.ts',
    expects: 'joins the end of the key',
    needs,
  },
  {
    name: 'events are read in the order of their numbers as text',
    file: SQL,
    find: `int8multirange{{shard}}
ORDER BY event.sequence LIMIT $1`,
    replace: `int8multirange{{shard}}
ORDER BY sequence LIMIT $1`,
    test: 'test/postgres/faults/verify.test.ts',
    expects: 'nothing wrong with what is right',
    needs,
  },
  {
    name: 'a stopped owner keeps its term',
    file: 'src/postgres/owner-source.ts',
    find: '    if (!gone) {\n      await writer',
    replace: '    if (gone) {\n      await writer',
    test: 'test/postgres/owner.test.ts',
    expects: 'takes over when the first stops',
    needs,
  },
  {
    name: 'an idle relay does not raise its flag',
    file: 'src/postgres/owner-source.ts',
    find: 'const look = this.#wake === undefined || (await this.#wake.raise())',
    replace: 'const look = this.#wake !== undefined',
    test: 'test/postgres/owner.test.ts',
    expects: 'woken by a commit',
    needs,
  },
  {
    name: 'an owner goes on past the end of its term',
    file: 'src/postgres/owner-source.ts',
    find: 'if (this.#options.clock.monotonic() < this.#deadline) return true',
    replace: 'return true',
    test: ZOMBIE,
    expects: 'reading as owner',
    needs,
  },
  {
    name: 'a renewal covers what is claimed while it is written',
    file: 'src/postgres/lease-source.ts',
    find: 'Math.min(this.#renewed, this.#claimed)) return true',
    replace: 'this.#renewed) return true',
    test: ZOMBIE,
    expects: 'reading as lease',
    needs,
  },
  {
    name: 'a stop waits for a database that does not answer',
    file: 'src/postgres/reader.ts',
    find: 'await this.#answered(this.#leadership.leave(this.#member))',
    replace: 'await this.#leadership.leave(this.#member)',
    test: ZOMBIE,
    expects: 'owner from stopping',
    needs,
  },
  {
    name: 'leases that ran out again are claimed many at once',
    file: SQL,
    find: 'LEAST(1, $5::text::int)',
    replace: '$1::text::int',
    test: 'test/postgres/faults/poison.test.ts',
    expects: 'lease: an event that kills its relay',
    needs,
  },
  {
    name: 'an owner that could not say that it lives is taken for dead',
    file: SQL,
    find: 'OR member IN (SELECT holder FROM owners)) LIMIT 1',
    replace: ') LIMIT 1',
    test: 'test/postgres/faults/switch.test.ts',
    expects: 'still keeps others out',
    needs: ['postgres', 'pgbouncer'],
  },
]
