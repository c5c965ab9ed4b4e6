import { defineConfig } from 'vitest/config'

/** A small suite that the tests of the runner run: one of each kind of result. */
export default defineConfig({ test: { include: ['*.sample.ts'], pool: 'forks', testTimeout: 0 } })
