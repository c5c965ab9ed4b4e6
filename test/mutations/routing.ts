import type { Mutation } from '../../scripts/mutations/mutation.ts'

const needs = ['postgres']
const test = 'test/outbox/routing-relay.test.ts'

/** Faults of routing by topic. */
export const mutations: Mutation[] = [
  {
    name: 'an event goes to the first of its destinations only',
    file: 'src/outbox/routing-relay.ts',
    find: 'for (const name of destinations) {',
    replace: 'for (const name of destinations.slice(0, 1)) {',
    test,
    expects: 'goes to the destinations of its topic',
    needs,
  },
  {
    name: 'of routes only the first that fits counts',
    file: 'src/outbox/routes.ts',
    find: 'this.#routes.filter(({ fits }) => fits(topic)).flatMap(({ to }) => to)',
    replace: 'this.#routes.find(({ fits }) => fits(topic))?.to',
    test,
    expects: 'each route that fits',
    needs,
  },
  {
    name: 'an event without a route is dropped without a word',
    file: 'src/outbox/routing-relay.ts',
    find: 'if (!this.#drops) {',
    replace: 'if (this.#drops) {',
    test,
    expects: 'a topic without a route is dead',
    needs,
  },
  {
    name: 'after one without a route, later ones of its key overtake it',
    file: 'src/outbox/routing-relay.ts',
    find: "if (key !== undefined && outcome.kind !== 'ok') stopped.add(key)",
    replace: '',
    test,
    expects: 'later ones of its key wait',
    needs,
  },
  {
    name: 'branches are written one by one',
    file: 'src/postgres/outbox.ts',
    find: 'for (const [name, list] of parts) await this.branch(name).enqueue(tx, list)',
    replace:
      'for (const [name, list] of parts) await this.#db.transaction((own) => this.branch(name).enqueue(own, list)); void tx',
    test,
    expects: 'together or not at all',
    needs,
  },
  {
    name: 'a destination that is away keeps all others from starting',
    file: 'src/outbox/routing-relay.ts',
    find: 'if (error instanceof WaybillError && !(error instanceof Unavailable)) throw error\n        const message = `destination',
    replace: 'throw error\n        const message = `destination',
    test: 'test/outbox/routing-relay-start.test.ts',
    expects: 'keeps no other from starting',
  },
  {
    name: 'when one cannot start, the others are left running',
    file: 'src/flow/worker.ts',
    find: '      if (!givenUp.aborted) await this.ended().catch(() => {}) // what kept it from starting tells more\n',
    replace: '',
    test: 'test/outbox/routing-relay-start.test.ts',
    expects: 'nothing is left running',
  },
  {
    name: 'nobody looks for branches without a destination',
    file: 'src/outbox/routing-relay.ts',
    find: 'await this.#lookForOrphans()',
    replace: '',
    test: 'test/outbox/routing-relay-start.test.ts',
    expects: 'a destination that is no more',
  },
]
