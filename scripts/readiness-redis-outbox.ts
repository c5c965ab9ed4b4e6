/** What must hold of units of work and outboxes on Redis, and the tests that show it; see readiness-map.ts. */
import type { Chapter } from './readiness-map.ts'

const by = (file: string) => (name: string) => ({ file: `test/redis/${file}.test.ts`, name })
const cluster = by('outbox-cluster')
const conformance = by('conformance')
const due = by('due')
const faults = by('outbox-faults')
const inbox = by('inbox')
const outbox = by('outbox-conformance')
const repair = by('repair')
const service = by('service')
const store = by('outbox')
const unit = by('unit')
const zombie = by('faults/zombie')
const anyFailure = (name: string) => ({ file: 'test/outbox/relay-order.test.ts', name })

export const redisOutboxLines: Chapter = {
  title: 'Acceptance of the outbox on Redis',
  lines: [
    {
      id: 'E-1',
      text: 'No transaction of a database is needed: the business write and the event are one script in one slot',
      tests: [
        store('business commands and events are one script: with the commit all of them, without it none'),
        store('the store says that it needs no transaction of a database'),
        cluster('a unit of work of another slot is refused before anything is sent'),
      ],
    },
    {
      id: 'E-2',
      text: 'Every change is one script, which looks at types first, and leaves nothing that cannot be put right',
      tests: [
        store('a key of another type refuses the whole unit of work, with nothing written'),
        faults('a process killed around each script'),
        repair('a script stopped halfway: the entry alone is enough'),
      ],
    },
    {
      id: 'E-3',
      text: 'What is pending is in the order of its next attempt: an outage does not turn on the oldest',
      tests: [
        store('the pause before each try grows with the count that is stored, whoever tries'),
        outbox('gives others while one waits for its retry, or for its time'),
      ],
    },
    {
      id: 'E-4',
      text: 'What failed too often is parked, kept, and re-armed by a person',
      tests: [
        store('parked at the limit, never taken away by itself, re-armed by a person'),
        outbox('rearm: dead events come again, with all their attempts, and nothing else is touched'),
      ],
    },
    {
      id: 'E-5',
      text: 'Enqueue: due at once; the same id again is a no-op, and counted',
      tests: [
        outbox('a committed event is there, once, and can be dispatched'),
        store('a duplicate id is a no-op and counted, in one batch and in two'),
      ],
    },
    {
      id: 'E-6',
      text: 'A batch has what is due, in order, no more than asked for; a place without an entry is passed over',
      tests: [
        outbox('gives a scheduled event when its time has come and not before'),
        outbox('gives no more than asked for, by count and by bytes, and at least one'),
        repair('a place without an entry in front of a relay: passed over, not tried for ever'),
      ],
    },
    {
      id: 'E-7',
      text: 'Marked as sent: the time is kept, the error cleared; what changed nothing says so',
      tests: [
        store('what was sent after failures has its attempts, and no error any more'),
        outbox('takes the same settlements twice without harm, and returns that they were stale'),
        faults('a zombie’s marks change nothing, and are counted'),
      ],
    },
    {
      id: 'E-8',
      text: 'Marked as failed: the error and the count are kept, the pause is computed from the stored count',
      tests: [
        store('the pause before each try grows with the count that is stored, whoever tries'),
        outbox('counts a retry that is charged, and none that is not, across sessions'),
      ],
    },
    {
      id: 'E-9',
      text: 'A relay right after the commit and one that polls, and nothing is sent by both',
      tests: [
        store('a relay of this process sends right after the commit, long before its poll'),
        store('what another process has committed is found by the poll'),
        store('the inline relay and pollers race for the same events: none is in flight twice'),
      ],
    },
    {
      id: 'E-10',
      text: 'A worker finds orphans and puts them right',
      tests: [
        repair('a place without an entry: dropped, and told'),
        repair('an entry without a place: put back, whether its state is kept or not'),
        repair('what belongs together is left alone, in every state'),
      ],
    },
    {
      id: 'E-11',
      text: 'An intent with its time is recorded with the business write',
      tests: [due('an intent is recorded with the business write, in one script, or not at all')],
    },
    {
      id: 'E-12',
      text: 'Due intents are found, the earliest first, no more than asked for',
      tests: [due('due ones are found, the earliest first, no more than asked for, none that are not due')],
    },
    {
      id: 'E-13',
      text: 'Deciding is one script: enqueued, enqueued before, suppressed by a revocation, not due, unknown',
      tests: [
        due('enqueued: under a UUID v3 of id and time, once; deciding again is already-enqueued or unknown'),
        due('suppressed by revocation: by revoke, before or after it is recorded, and by a key of your own'),
        due('not due: neither before its time nor behind the cutoff'),
      ],
    },
    {
      id: 'E-14',
      text: 'A revocation that comes with the decision is never told beside the expiry',
      tests: [due('revocations and decisions that race: an event or a suppression, never both, and the answers agree')],
    },
    {
      id: 'E-15',
      text: 'Broken entries and keys of another type are one clear error each, and the flow goes on',
      tests: [
        store('a broken entry is parked with the reason, and the flow goes on'),
        store('wrong key type under our names: one clear error'),
      ],
    },
  ],
}

export const redisOutboxRows: Chapter = {
  title: 'Units of work and outboxes on Redis, row by row',
  lines: [
    {
      id: 'RD-4',
      text: 'Commands are queued and written in one step, or not at all; they have no answers; one that fails midway is told, and not done again',
      tests: [
        unit('everything queued is written in one step, in its order, whatever the type of key'),
        conformance('what throws is rolled back, and throws just that'),
        unit('queued commands answer nothing, in the types too'),
        unit('types are looked at before anything is written'),
        unit('a command that fails midway is named, with what was applied, and is permanent'),
        service('work that is applied in part goes to the dead letters at once, and names the command'),
      ],
    },
    {
      id: 'RD-5',
      text: 'Inbox without a gap: a mark with a lease, done with the work, fenced; a duplicate of done is acked, of processing waits',
      tests: [
        inbox('a mark is leased while the work goes on, and done for the retention with it'),
        inbox('a handler that fails gives its mark up at once'),
        service('marks are kept for 24 hours by default, and their key may be made of the whole message'),
        by('living')('marks that could not be given up: handled again at once here, soon elsewhere, told once'),
        inbox("a zombie's commit changes nothing and is counted"),
        service('a message that another is handling waits without spending attempts'),
        service('two subscribers of one stream do not suppress each other'),
        by('faults/crash')('a service killed at each point'),
        zombie('paused past its leases: another does the work, and the late commit changes nothing and is counted'),
      ],
    },
    {
      id: 'RD-6',
      text: 'Outbox: what a handler returns is written with its commands, and goes nowhere else',
      tests: [
        service('business writes, the done mark and outputs are one step'),
        service('a handler that imports no driver: written in its unit of work on Redis, and unchanged elsewhere'),
        service('the three middlewares by themselves, in their order, or an error at start'),
      ],
    },
    {
      id: 'RD-7',
      text: 'Forwarding to any publisher, acked on its confirmation and then removed; one stream, many destinations',
      tests: [
        service(
          'what forwards is confirmed by the destination only; what is refused stays, and stream and codec are yours',
        ),
        service('one outbox stream serves many destinations: other streams, by topic'),
        service(
          'an engine over the outbox stream: handled or passed through, acked when it has arrived, and then removed',
        ),
        by('memory')('what is forwarded is gone'),
      ],
    },
    {
      id: 'RD-8',
      text: 'Outbox by scripts: claims with a lease and a fence, backoff, parked events, retention, order per key, shards',
      tests: [
        outbox('redis outbox: ioredis on redis6'),
        outbox('lease: what one relay has, another cannot settle'),
        outbox('order: while one of a key waits for its retry, later ones wait too and other keys do not'),
        store('everything is published in order per key, kept for its retention, then cleaned'),
        store('shards: events are spread by key, each key in order, and people see one outbox'),
        store('what is due for its next try goes before what came later: fresh events do not starve it'),
        by('outbox-shards')(
          'the other flows, keeps its leases and is charged nothing; when it is back its events come',
        ),
        by('reshard')('units of work, events and intents: nothing is lost, doubled, charged or applied in part'),
        faults('a relay suspended past its lease: another takes over, and what the first settles then changes nothing'),
        faults('Redis restarted with its append-only file: what was committed is there, and nothing else'),
        faults('the connection is cut between a command and its answer'),
        by('outbox-commands')('no command or argument that came after 6.0 is sent'),
        anyFailure('on Redis > script outbox: in order by key and once, whatever fails'),
      ],
    },
    {
      id: 'RD-9',
      text: 'The inline relay and the poller share the claim; repair goes both ways, and over leases',
      tests: [
        store('the inline relay and pollers race for the same events: none is in flight twice'),
        repair('a place without an entry: dropped, and told'),
        repair('an entry without a place: put back, whether its state is kept or not'),
        repair('a lease that nobody holds: given up after its end'),
        repair('beside relays and writers at work nothing is lost, doubled or reordered'),
      ],
    },
    {
      id: 'RD-10',
      text: 'Due-time events: recorded, found, decided in one script, cancelled and rescheduled; a worker does it once',
      tests: [
        due('enqueued: under a UUID v3 of id and time, once'),
        due('revocations and decisions that race: an event or a suppression, never both'),
        due('cancel and reschedule: nothing comes of it, or it comes at its new time and not for the old one'),
        due('a worker tells what is due, through the relay'),
        due('many workers do each intent once'),
      ],
    },
  ],
}
