import type { Mutation } from '../../scripts/mutations/mutation.ts'

const test = 'test/postgres/faults/wake.test.ts'
const needs = ['postgres']

/** Wake-ups that are missed, and such as cost every commit. */
export const mutations: Mutation[] = [
  {
    name: 'what was committed before the flag went up is not looked for',
    file: 'src/postgres/wake.ts',
    find: 'if (flag.held) this.#failures = 0\n    return true',
    replace: 'if (flag.held) this.#failures = 0\n    return false',
    test,
    expects: 'none waits for a poll',
    needs,
  },
  {
    name: 'a writer that kept the flag waiting wakes nobody with its commit',
    file: 'src/postgres/wake.ts',
    find: 'if (waited) this.#on.granted()',
    replace: '',
    test,
    expects: 'none waits for a poll',
    needs,
  },
  {
    name: 'every commit notifies, whether relays are idle or not',
    file: 'src/postgres/wake.ts',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    find: "wake === 'flag' ? `CASE WHEN ${refused(regclass)} THEN",
    replace: "wake === 'flag' ? `CASE WHEN true THEN",
    test,
    expects: 'writers tell nobody',
    needs,
  },
]
