import { defineConfig } from 'vitest/config'

const tier = process.env['WAYBILL_TIER'] ?? 'test'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // `*.full.test.ts` are the long fault tests: `npm run test:full` and `npm run torture` only.
    exclude: tier === 'test' ? ['**/*.full.test.ts', '**/node_modules/**'] : ['**/node_modules/**'],
    testTimeout: tier === 'torture' ? 0 : 60_000,
    hookTimeout: 60_000,
    pool: 'forks',
    passWithNoTests: false,
  },
})
