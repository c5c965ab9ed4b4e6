import { redisScript } from '../../drivers/redis/connection.ts'
import { lua } from './lua.generated.ts'

/** Owns what was given back. Its entries are due when they have been idle for `DUE`; see lua/claim.lua. */
export const RETURNED = 'waybill:returned'
/** The longest delay, too: a year. */
export const DUE = 366 * 86_400_000

export const scripts = {
  publish: redisScript('publish', lua.publish),
  claim: redisScript('claim', lua.claim),
  settle: redisScript('settle', lua.settle),
  extend: redisScript('extend', lua.extend),
  leave: redisScript('leave', lua.leave),
  retire: redisScript('retire', lua.retire),
  rearm: redisScript('rearm', lua.rearm),
  position: redisScript('position', lua.position),
  trim: redisScript('trim', lua.trim),
  stats: redisScript('stats', lua.stats),
} as const
