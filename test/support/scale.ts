/** How much a test does in which tier: quick by default, `npm run test:full` more, `npm run torture` all of it. */
export type Tier = 'test' | 'full' | 'torture'

export const tier: Tier = (process.env['WAYBILL_TIER'] as Tier | undefined) ?? 'test'

/** Picks the number of the tier. Importing this file also makes `--rest` run the test again in tier full. */
export function scale<T>(sizes: Record<Tier, T>): T {
  return sizes[tier]
}

/** The drivers that run suites on Sentinel and Cluster, which start many servers: in the quick tier one of them. */
export const topologyDrivers = scale<readonly ('ioredis' | 'node-redis')[]>({
  test: ['ioredis'],
  full: ['ioredis', 'node-redis'],
  torture: ['ioredis', 'node-redis'],
})
