/**
 * The servers that `npm test` provisions: only what the code so far uses. A new adapter adds its server here, and
 * nowhere else; the catalog already knows how to start all of them.
 */
export const needed = ['postgres', 'postgres15', 'pgbouncer', 'redis', 'redis6', 'rabbitmq', 'nats', 'kafka']

/** What the long tiers ask for besides. */
export const neededLater = ['rabbitmq4']
