import type { DurabilityTexts } from '../../drivers/redis/checks.ts'

/** What a publisher and a source can lose. */
export const DURABILITY_TEXTS: DurabilityTexts = {
  needs: 'streams with consumer groups need',
  evicted: () => 'whole streams, with messages nobody has handled',
  accepted: 'acknowledged',
}
