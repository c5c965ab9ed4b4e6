/** One setting: what it is called in the environment, which option it sets, what is meant without it. */
export interface Setting {
  /** Behind the prefix: `RELAY_ENABLED` is `OUTBOX_RELAY_ENABLED`. */
  readonly name: string
  readonly of: 'relay' | 'cleaner'
  /** The option it sets, a dot for each level. */
  readonly option: string
  readonly kind: 'switch' | 'duration' | 'count'
  /** As it would be written. The option's own default is the same. */
  readonly default: string
  readonly min?: number
  readonly max?: number
  readonly meaning: string
}

const DAY = 86_400_000

/** Every setting. What is read from the environment, the documentation and the nearest name all come from here. */
export const SETTINGS: readonly Setting[] = [
  {
    name: 'RELAY_ENABLED',
    of: 'relay',
    option: 'enabled',
    kind: 'switch',
    default: 'true',
    meaning: 'Whether the relay publishes. Switched off it starts, does nothing and says so; nothing is lost.',
  },
  {
    name: 'RELAY_POLL_INTERVAL',
    of: 'relay',
    option: 'poll',
    kind: 'duration',
    default: '1s',
    min: 1,
    meaning: 'How often an idle relay looks, doubling to 5 s. Writers wake it earlier.',
  },
  {
    name: 'RELAY_BATCH_SIZE',
    of: 'relay',
    option: 'batch',
    kind: 'count',
    default: '100',
    max: 10_000,
    meaning: 'How many events are taken at first, growing to 1000 while batches come full.',
  },
  {
    name: 'RELAY_LOCK_TTL',
    of: 'relay',
    option: 'lease',
    kind: 'duration',
    default: '60s',
    min: 100,
    max: 24 * DAY,
    meaning: 'How long the right to settle lasts without being renewed.',
  },
  {
    name: 'RELAY_MAX_ATTEMPTS',
    of: 'relay',
    option: 'retry.attempts',
    kind: 'count',
    default: '25',
    meaning: 'How often an event is tried before it is dead.',
  },
  {
    name: 'CLEANER_ENABLED',
    of: 'cleaner',
    option: 'enabled',
    kind: 'switch',
    default: 'true',
    meaning: 'Whether the cleaner removes published events.',
  },
  {
    name: 'CLEANER_RETENTION',
    of: 'cleaner',
    option: 'retention',
    kind: 'duration',
    default: '168h',
    meaning: 'How long published events are kept.',
  },
]
