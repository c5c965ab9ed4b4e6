import type { Mutation } from '../../scripts/mutations/mutation.ts'

const test = 'test/postgres/faults/crash.test.ts'
const needs = ['postgres']

/** Faults that show only when a process is killed. */
export const mutations: Mutation[] = [
  {
    name: 'a message that comes again after a crash is handled again',
    file: 'src/store/middleware.ts',
    find: "if (answer === 'new') return",
    replace: "if (answer !== 'busy') return",
    test,
    expects: 'consumer.after-commit while it consumes:',
    needs,
  },
  {
    name: 'a message is marked as handled before it is',
    file: 'src/postgres/inbox.ts',
    find: 'answered(sqlOf(tx).query(this.#receive, values)',
    replace: 'answered(this.#database.query(this.#receive, values)',
    test,
    expects: 'consumer.after-effect while it consumes:',
    needs,
  },
  {
    name: 'outputs are written when the handler has committed',
    file: 'src/store/middleware.ts',
    find: 'return outputs.length === 0 ? undefined : enqueue(',
    replace:
      'if (outputs.length > 0) setImmediate(enqueue as never, (context as InTransaction<Tx>).tx, message, outputs)\n        return outputs.length >= 0 ? undefined : enqueue(',
    test,
    expects: 'consumer.after-commit while it consumes an outbox',
    needs,
  },
]
