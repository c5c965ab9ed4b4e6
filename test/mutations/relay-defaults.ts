import type { Mutation } from '../../scripts/mutations/mutation.ts'

const file = 'src/outbox/relay-options.ts'
const relay = 'src/outbox/relay.ts'
const test = 'test/outbox/relay-options.test.ts'
const fault = (name: string, find: string, replace: string, expects: string): Mutation => {
  return { name, file, find, replace, test, expects }
}

/** A default that changes unnoticed changes every service that relies on it. */
export const mutations: Mutation[] = [
  fault('a relay takes 10 at first', '  batch: 100,', '  batch: 10,', 'takes 100'),
  fault('a relay never takes more than 900', '  maxBatch: 1000,', '  maxBatch: 900,', 'up to 1000'),
  fault('an idle relay looks every 2 s at first', "  poll: '1s',", "  poll: '2s',", 'looks again after 1 s'),
  fault('an idle relay looks every 10 s in the end', "  maxPoll: '5s',", "  maxPoll: '10s',", 'doubling to 5 s'),
  fault('a relay asks for a lease of 30 s', "  lease: '60s',", "  lease: '30s',", 'lease of 60 s'),
  {
    ...fault(
      'a relay gives up after 20 attempts whatever its options say',
      '...(retry === undefined ? {} : { retry })',
      'retry: { ...retry, attempts: 20 }',
      '25 attempts',
    ),
    file: relay,
  },
  {
    ...fault(
      'a reader gives up after 20 attempts',
      'options.retry?.attempts ?? RETRY_DEFAULTS.attempts',
      'options.retry?.attempts ?? 20',
      '25 attempts',
    ),
    file: relay,
  },
  fault('a relay publishes one batch at a time', '  concurrency: 2,', '  concurrency: 1,', 'two batches at once'),
  fault('a relay that stops waits 1 s', "  grace: '10s',", "  grace: '1s',", 'for 10 s'),
  fault('a relay is not woken', "  wake: true,\n  grace: '10s',", "  wake: false,\n  grace: '10s',", 'is woken'),
  fault(
    'a relay removes what it has published',
    '  deleteOnPublish: false,',
    '  deleteOnPublish: true,',
    'keeps what it has published',
  ),
  {
    ...fault('the pause between tries ends at 10 minutes', "max: '60s'", "max: '600s'", 'to 60 s'),
    file: 'src/flow/retry-policy.ts',
  },
  {
    ...fault('the jitter of a pause is 1 s', "max: '60s', jitter: '200ms'", "max: '60s', jitter: '1s'", 'up to 200 ms'),
    file: 'src/flow/retry-policy.ts',
  },
  {
    ...fault('probes of a destination end at 5 minutes', "max: '30s'", "max: '300s'", 'doubling to 30 s'),
    file: 'src/flow/retry-policy.ts',
  },
  {
    ...fault('an outbox as a source has a lease of 30 s', "options.lease ?? '60s'", "options.lease ?? '30s'", 'source'),
    file: 'src/outbox/source.ts',
  },
  {
    ...fault('a relay looks as often as it likes', '      poll,\n      maxPoll,\n', '', 'as often as'),
    file: relay,
    test: 'test/postgres/polling.test.ts',
    needs: ['postgres'],
  },
  {
    ...fault('a relay takes as many as it likes', 'size: this.#maxBatch', 'size: 1000', 'no more are taken'),
    file: relay,
    test: 'test/postgres/polling.test.ts',
    needs: ['postgres'],
  },
  {
    name: 'what a publish function throws is taken for success',
    file: 'src/flow/publisher.ts',
    find: 'return outcomeOf(error, kindOf)',
    replace: 'return error === undefined ? outcomeOf(error, kindOf) : OK',
    test: 'test/outbox/relay-to-function.test.ts',
    expects: 'the outcome of that message alone',
    needs: ['postgres'],
  },
  {
    name: 'a cleaner runs every minute, whatever it is told',
    file: 'src/outbox/cleaner.ts',
    find: '      every,\n      enabled,',
    replace: "      every: '1m',\n      enabled,",
    test: 'test/postgres/cleaner.test.ts',
    expects: 'as often as it is told',
    needs: ['postgres', 'postgres15'],
  },
  {
    name: 'a relay that was run once never reads again when it is started',
    file: 'src/outbox/relay.ts',
    find: 'if (this.members.includes(flow)) continue',
    replace: 'if (this.#flows.has(source)) continue',
    test: 'test/outbox/relay.test.ts',
    expects: 'reads on when it is started',
  },
]
