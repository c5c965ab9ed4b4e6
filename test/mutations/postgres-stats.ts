import type { Mutation } from '../../scripts/mutations/mutation.ts'

const file = 'src/postgres/admin-stats.ts'
const test = 'test/postgres/admin-stats.test.ts'
const needs = ['postgres', 'postgres15']

/** Gauges are read every few seconds: their cost must not grow with the table. */
export const mutations: Mutation[] = [
  {
    name: 'stats are read by whatever plan the planner likes',
    file,
    find: "const BY_INDEX = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']",
    replace: "const BY_INDEX = ['jit']",
    test,
    expects: 'read no more than they may',
    needs,
  },
  {
    name: 'an estimate looks at ten times as many places',
    file,
    find: "const PLACES = '200'",
    replace: "const PLACES = '2000'",
    test,
    expects: 'read no more than they may',
    needs,
  },
  {
    name: 'every row that waits for its time is looked at',
    file,
    find: '[COUNTED + 1, LOOKED_AT + 1,',
    replace: '[COUNTED + 1, 4 * LOOKED_AT + 1,',
    test,
    expects: 'read no more than they may',
    needs,
  },
]
