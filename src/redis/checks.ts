import { checkServer, type Durability, type DurabilityTexts } from '../drivers/redis/checks.ts'
import type { RedisClient } from '../drivers/redis/redis.ts'

/** What a store can lose. */
const DURABILITY_TEXTS: DurabilityTexts = {
  // XADD that is unknown would end a commit midway.
  needs: 'units of work, inbox and outbox need the scripts and streams of',
  // Of what is ours only the claims of the inbox have an expiry.
  evicted: (policy) =>
    policy.startsWith('volatile-')
      ? 'claims of the inbox, and then a message that was handled is handled again'
      : 'claims of the inbox, events of the outbox that nobody has published, and what you have written',
  accepted: 'committed, with its events and inbox claims,',
}

/**
 * The client of a store, which looks at the server on the first connection that anybody of the store opens, whether a
 * unit of work, the inbox or a relay. `key` is any key of the store: all of them are on one node.
 */
export function checkedClient(client: RedisClient, where: string, key: string, durability: Durability): RedisClient {
  let checked = false
  return {
    ...client,
    async connect(options) {
      const connection = await client.connect(options)
      try {
        if (!checked) await checkServer(connection, key, where, durability, DURABILITY_TEXTS)
        checked = true
      } catch (error) {
        await connection.close()
        throw error
      }
      return connection
    },
  }
}
