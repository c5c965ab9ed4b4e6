import { defineConfig } from 'vitest/config'
import LongestFirst from './scripts/testing/sequencer.ts'
import { TEST_LIMITS } from './test/support/limits.ts'

const tier = process.env['WAYBILL_TIER'] ?? 'test'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // `*.full.test.ts` are the long fault tests: `npm run test:full` and `npm run torture` only.
    exclude: tier === 'test' ? ['**/*.full.test.ts', '**/node_modules/**'] : ['**/node_modules/**'],
    // A limit is for what hangs; what takes long because it does much is no fault.
    testTimeout: TEST_LIMITS[tier as keyof typeof TEST_LIMITS] ?? 0,
    hookTimeout: 120_000,
    setupFiles: ['test/support/quiet.ts'],
    pool: 'forks',
    // The long tests measure delays and fill both cores by themselves: one file at a time.
    fileParallelism: tier === 'test',
    // They wait more than they work: four share two cores, which by default would get one.
    maxWorkers: tier === 'test' ? 4 : 1,
    sequence: { sequencer: LongestFirst },
    passWithNoTests: false,
  },
})
