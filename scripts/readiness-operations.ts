/** What must hold of settings, metrics, traces and logs, and the tests that show it; see readiness-map.ts. */
import type { Chapter } from './readiness-map.ts'

const by = (file: string) => (name: string) => ({ file: `test/${file}.test.ts`, name })
const admin = by('postgres/admin')
const assignment = by('outbox/assignment')
const cleaner = by('postgres/cleaner')
const defaults = by('outbox/relay-options')
const docs = by('observability/docs')
const errors = by('core/errors')
const every = by('observability/every-metric')
const gauges = by('observability/gauges')
const hostile = by('observability/hostile')
const logging = by('observability/logging')
const metrics = by('observability/outbox-metrics')
const names = by('observability/metric-names')
const notCounted = by('observability/not-counted')
const ops = by('ops/ops')
const secrets = by('observability/secrets')
const secretsElsewhere = by('observability/secrets-elsewhere')
const settings = by('settings/settings')
const stats = by('postgres/admin-stats')
const traces = by('observability/opentelemetry')
const processes = by('observability/three-processes')

const NAMES = settings("the table has C's names and C's defaults, and no others")

/** A switch, an interval, a number: its name and default, and that the option it sets has the same. */
function setting(
  id: string,
  name: string,
  usual: string,
  ...more: Chapter['lines'][number]['tests']
): Chapter['lines'][number] {
  const tests = [NAMES, settings(`${name}: its default is that of the option it sets`), ...more]
  return { id, text: `\`${name}\`, by default \`${usual}\``, tests }
}

const OFF = settings('OUTBOX_RELAY_ENABLED=false stops delivery and keeps the data; on again, all of it goes out')
const CLEANER_OFF = settings('OUTBOX_CLEANER_ENABLED=false removes nothing, and says so')
const ODD = 'what is allowed in an odd form, and what is not'
const COUNTS = metrics('attempts are counted by result, the dead by topic, and what was given back is not')
const GAUGES = metrics('gauges tell what is pending, scheduled, dead and unsettled')

const AGREED = names('the metrics of an outbox that were agreed upon have their names, kinds and labels, and no others')

export const operationLines: Chapter = {
  title: 'Operation and monitoring of the transactional outbox',
  lines: [
    setting('C-10.1.1', 'OUTBOX_RELAY_ENABLED', 'true', OFF, settings(`RELAY_ENABLED: ${ODD}`)),
    setting(
      'C-10.1.2',
      'OUTBOX_RELAY_POLL_INTERVAL',
      '1s',
      settings(`RELAY_POLL_INTERVAL: ${ODD}`),
      defaults('looks again after 1 s'),
    ),
    setting(
      'C-10.1.3',
      'OUTBOX_RELAY_BATCH_SIZE',
      '100',
      settings(`RELAY_BATCH_SIZE: ${ODD}`),
      defaults('takes 100 at first'),
    ),
    setting(
      'C-10.1.4',
      'OUTBOX_RELAY_LOCK_TTL',
      '60s',
      defaults('asks for a lease of 60 s'),
      settings('the bounds of a setting are those of the option it sets'),
    ),
    setting(
      'C-10.1.5',
      'OUTBOX_RELAY_MAX_ATTEMPTS',
      '25',
      defaults('gives an event 25 attempts, and tells its reader so'),
      settings('the bounds of a setting are those of the option it sets'),
    ),
    setting('C-10.1.6', 'OUTBOX_CLEANER_ENABLED', 'true', CLEANER_OFF),
    setting(
      'C-10.1.7',
      'OUTBOX_CLEANER_RETENTION',
      '168h',
      settings('durations as we write them, and as Go does'),
      cleaner('removes what was published before the retention, and nothing else'),
    ),
    {
      id: 'C-10.2.1',
      text: '`outbox_enqueue_total{table,topic}`',
      tests: [AGREED, metrics('enqueue counts what is new, by topic; duplicates apart')],
    },
    {
      id: 'C-10.2.2',
      text: '`outbox_dispatch_total{table,topic,result}`: success or failure',
      tests: [AGREED, COUNTS, notCounted('what is given back: the broker goes away while the relay is stopped')],
    },
    { id: 'C-10.2.3', text: '`outbox_dead_total{table,topic}`', tests: [AGREED, COUNTS] },
    { id: 'C-10.2.4', text: '`outbox_dispatch_latency_seconds{table,topic,result}`', tests: [AGREED, COUNTS] },
    { id: 'C-10.2.5', text: '`outbox_pending_count{table}`', tests: [AGREED, GAUGES] },
    { id: 'C-10.2.6', text: '`outbox_locked_count{table}`', tests: [AGREED, GAUGES] },
    { id: 'C-10.3.1', text: 'Switched off, the relay stops delivery and keeps the data for later', tests: [OFF] },
    {
      id: 'C-10.3.2',
      text: 'Unpublished data is removed only by table, tenant and time window, with an audit record',
      tests: [
        settings(
          'unpublished data is removed only by table, tenant and time window, after a count, with an audit record',
        ),
        admin('discards pending events by tenant or topic and window only, and exactly as many as were expected'),
      ],
    },
  ],
}

export const operationRows: Chapter = {
  title: 'Seen from outside',
  lines: [
    {
      id: 'OP-1.1',
      text: 'Metrics of outboxes, inbox, consumers, sagas and projections; no series twice, labels bounded',
      tests: [
        every('each event is counted where its metric says, with the value it has'),
        docs('docs/telemetry.md has every metric, with its kind, its labels and its help'),
        gauges('an OpenMetrics parser reads it: no family twice, samples of a family together, one end'),
        hostile('ten thousand topics and types are a hundred of each, and other'),
      ],
    },
    {
      id: 'OP-1.2',
      text: 'Gauges without full scans: exact, or labelled an estimate and within 5 %; told by one process; a scrape answers within a second',
      tests: [
        gauges('numbers up to a million are exact, through their own index; beyond, an estimate that says so'),
        stats('are within 5 %, and labelled'),
        stats('read no more than they may, however large the table is'),
        assignment('never two, whoever looks when'),
        gauges('while the database is silent a scrape answers within a second, without its gauges, and says so'),
      ],
    },
    {
      id: 'OP-1.3',
      text: 'A dashboard and alert rules that use what there is, each alarm with what to do',
      tests: [
        ops('every metric that a rule or a panel uses exists, and has the labels it is grouped by'),
        ops('every alert says what to do, at a place of the guide that exists'),
      ],
    },
    {
      id: 'OP-2.1',
      text: 'One trace from the request through outbox, relay, broker and consumer',
      tests: [
        traces('from the request through enqueue, the time in the outbox, relay and handler'),
        processes('one trace through three processes and RabbitMQ'),
      ],
    },
    {
      id: 'OP-2.2',
      text: 'Logs with ids and never payloads or passwords, whatever is thrown',
      tests: [
        logging('with pino: records with fields, and no payload in any of them, whatever happens to a message'),
        secrets('no error of a publisher writes what a payload holds: not to logs, last_error, metrics'),
        secretsElsewhere('what PostgreSQL says of values it refuses: in a handler, its outputs, its inbox'),
        errors('holds no password: '),
      ],
    },
    {
      id: 'OP-3',
      text: 'Wrong settings fail with the name, the value and what is allowed, all of them at once; switched off, nothing is lost',
      tests: [settings('all that is wrong is told at once: name, value, what is allowed; and the nearest name'), OFF],
    },
  ],
}
