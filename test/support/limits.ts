/** How long a test may take, by tier: a limit is for what hangs. 0: as long as it takes. In milliseconds. */
export const TEST_LIMITS = { test: 120_000, full: 900_000, torture: 0 } as const

/** How long something may be waited for, unless the test says otherwise. Below every limit of tests. */
export const WAIT_LIMIT = TEST_LIMITS.test / 2
