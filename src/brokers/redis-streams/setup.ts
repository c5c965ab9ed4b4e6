import type { Stakes } from '../../drivers/redis/checks.ts'

/** What a publisher and a source can lose. */
export const STAKES: Stakes = {
  needs: 'streams with consumer groups need',
  evicted: () => 'whole streams, with messages nobody has handled',
  accepted: 'acknowledged',
}
