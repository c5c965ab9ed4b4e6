import { redisScript } from '../drivers/redis/connection.ts'
import { lua } from './lua.generated.ts'

export const scripts = {
  receive: redisScript('receive', lua.receive),
  renew: redisScript('renew', lua.renew),
  release: redisScript('release', lua.release),
} as const
