import type { Mutation } from '../../scripts/mutations/mutation.ts'

/** Faults of the checks themselves: a check that lets everything pass is worse than none. */
export const mutations: Mutation[] = [
  {
    name: 'an inline type import passes for one that is erased',
    file: 'scripts/check/imports.ts',
    find: "node.importClause?.isTypeOnly ? 'type' : 'value'",
    replace: "'type'",
    test: 'test/check/boundaries.test.ts',
    expects: 'inline type imports',
  },
  {
    name: 'lazy imports are not seen',
    file: 'scripts/check/imports.ts',
    find: 'node.expression.kind === ts.SyntaxKind.ImportKeyword',
    replace: 'false',
    test: 'test/check/boundaries.test.ts',
    expects: 'every form of import is seen',
  },
  {
    name: 'a broker may import another',
    file: 'scripts/check/boundaries.ts',
    find: "source !== 'brokers' || brokerOf(from) === brokerOf(to)",
    replace: 'true',
    test: 'test/check/boundaries.test.ts',
    expects: "import { x } from '../kafka/index.ts'",
  },
  {
    name: 'core may use any built-in',
    file: 'scripts/check/boundaries.ts',
    find: "layerOf(from) !== 'core' || coreBuiltins[specifier]",
    replace: 'true',
    test: 'test/check/boundaries.test.ts',
    expects: 'core has three built-ins',
  },
  {
    name: 'embedding leaves placeholders unescaped',
    file: 'scripts/embed.ts',
    find: '/[\\\\`]|\\$\\{/g',
    replace: '/[\\\\`]/g',
    test: 'test/check/embed.test.ts',
    expects: 'dollar braces survive',
  },
  {
    name: 'a generated file whose source is gone is not noticed',
    file: 'scripts/embed.ts',
    find: ', ...orphans(folder, wanted)',
    replace: '',
    test: 'test/check/embed.test.ts',
    expects: 'left over',
  },
]
