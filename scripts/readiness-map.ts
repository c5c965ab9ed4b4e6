/**
 * What must hold, line by line, and the tests that show it. `npm run readiness` runs them and writes docs/readiness.md;
 * test/readme/readiness.test.ts holds the map to the tests there are.
 */
import { brokerRows, consumerLines } from './readiness-brokers.ts'
import { operationLines, operationRows } from './readiness-operations.ts'
import { projectionRows, readModelLines } from './readiness-projections.ts'
import { redisLines, redisRows } from './readiness-redis.ts'
import { redisOutboxLines, redisOutboxRows } from './readiness-redis-outbox.ts'
import { asynchronousSagaLines, sagaRows, sagaTimeoutLines } from './readiness-saga-rows.ts'
import { compensationLines, sagaRecordLines, scannerLines, synchronousSagaLines } from './readiness-sagas.ts'

export interface Line {
  readonly id: string
  readonly text: string
  readonly tests: readonly Shown[]
}

/** All tests of `file` whose full name has `name` in it. */
export interface Shown {
  readonly file: string
  readonly name: string
}

export interface Chapter {
  readonly title: string
  readonly lines: readonly Line[]
}

const by = (file: string) => (name: string) => ({ file: `test/${file}.test.ts`, name })
const acking = by('router/acking')
const backoff = by('core/backoff')
const bus = by('brokers/in-process/bus')
const errors = by('core/errors')
const event = by('core/event')
const message = by('core/message')
const drain = by('flow/drain')
const flow = by('flow/flow')
const keys = by('flow/keys')
const lifecycle = by('flow/run')
const pipes = by('flow/pipes')
const properties = by('flow/properties')
const source = by('flow/source')
const window = by('flow/window')
const routerAcking = by('router/consumer')
const engine = by('router/engine')
const routerMiddleware = by('router/middleware')
const router = by('router/router')
const observability = (file: string) => by(`observability/${file}`)
const admin = by('postgres/admin')
const adminRelay = by('postgres/admin-relay')
const archive = by('postgres/archive')
const cleaner = by('postgres/cleaner')
const conformance = by('postgres/conformance')
const enqueue = by('postgres/enqueue')
const inbox = by('postgres/inbox')
const middleware = by('postgres/middleware')
const migrate = by('postgres/migrate')
const outboxSource = by('postgres/source')
const owner = by('postgres/owner')
const partitions = by('postgres/partitions')
const row = by('postgres/row')
const stats = by('postgres/admin-stats')
const unit = by('postgres/store')
const claimCost = by('postgres/claim-cost')
const claims = by('postgres/claims')
const crash = by('postgres/faults/crash')
const defaults = by('outbox/relay-options')
const dispatch = by('postgres/faults/dispatch')
const fences = by('postgres/faults/fences')
const many = by('postgres/faults/many')
const polling = by('postgres/polling')
const poison = by('postgres/faults/poison')
const order = by('postgres/faults/order')
const anyFailure = by('outbox/relay-order')
const restart = by('postgres/faults/restart')
const switching = by('postgres/faults/switch')
const verify = by('postgres/faults/verify')
const wake = by('postgres/faults/wake')
const wiring = by('postgres/wiring')
const writers = by('postgres/faults/writers')
const zombie = by('postgres/faults/zombie')
const sqlOf = by('drivers/sql/sql-of')
const database = by('drivers/sql/database')
const broken = by('drivers/broken')
const examples = by('examples/examples')
const readme = by('readme/readme')

const outboxLines: Chapter = {
  title: 'Acceptance of the transactional outbox',
  lines: [
    {
      id: 'C-1',
      text: 'Backoff and jitter are predictable: the random source is injected',
      tests: [
        backoff('grows by its factor up to its maximum'),
        backoff('adds up to its jitter at random'),
        defaults('tries an event again after 1 s, doubling to 60 s'),
        defaults('adds up to 200 ms to that, at random'),
      ],
    },
    {
      id: 'C-2',
      text: 'The event bus answers an error when nobody subscribes, when a handler throws, when it rejects',
      tests: [bus('dispatch runs every subscriber'), bus('a message that nobody wants is an error')],
    },
    {
      id: 'C-3',
      text: 'A business transaction that rolls back leaves nothing in the outbox',
      tests: [
        owner('a rolled-back transaction leaves nothing to publish'),
        conformance('a rollback leaves nothing, and the event can be enqueued again'),
        crash('while it enqueues: with the commit everything, without it nothing'),
      ],
    },
    {
      id: 'C-4',
      text: 'Two workers at once on one table claim nothing twice',
      tests: [
        conformance('lease: two relays read at once, and no event goes to both'),
        many('competing, 2 processes: nothing is in flight twice'),
        claims('a claim under leases passes over what another has locked:'),
      ],
    },
    {
      id: 'C-5',
      text: 'What a worker claimed and did not settle is claimed by another when the lease is over',
      tests: [
        conformance('lease: what a relay lets run out goes to another, and counts as an attempt'),
        conformance('owner: when a relay dies the next gets what it had not settled'),
        claims('leased, run out for the first time'),
      ],
    },
    {
      id: 'C-6',
      text: 'Failures are tried again with backoff; at the limit no more, and the row can be found',
      tests: [
        conformance('gives a retry after its delay and not before'),
        defaults('tries an event again after 1 s, doubling to 60 s'),
        owner('at the attempt limit an event is dead'),
        conformance('keeps what is dead, with the reason, and never gives it'),
      ],
    },
    {
      id: 'C-7',
      text: 'The cleaner removes what was published before the retention, and nothing else',
      tests: [
        cleaner('removes what was published before the retention, and nothing else'),
        conformance('clean: what was published before the retention'),
      ],
    },
  ],
}

const middlewareLines: Chapter = {
  title: 'Acceptance of inbox and outbox on SQL',
  lines: [
    {
      id: 'D-1.1',
      text: 'The schemas of inbox and outbox are defined, and can be printed',
      tests: [
        migrate('create the tables, and change nothing when run again'),
        migrate('what is printed is what is run'),
        row('has a column for everything the event and its options say'),
        row('has subscriber, source and id as they are, and of what is too long or no text its hash'),
      ],
    },
    {
      id: 'D-1.2',
      text: 'They are created on request, not by a constructor',
      tests: [migrate('create the tables'), enqueue('a relay does not start on a table that is missing')],
    },
    {
      id: 'D-1.3',
      text: 'Creating them is idempotent',
      tests: [migrate('change nothing when run again'), migrate('can run in many processes at once')],
    },
    {
      id: 'D-1.4',
      text: 'Table names are configurable',
      tests: [migrate('modules have tables of their own'), inbox('another table, and one that is missing')],
    },
    {
      id: 'D-2.1',
      text: 'New messages reach the handler',
      tests: [middleware('business write, inbox and outputs are one')],
    },
    {
      id: 'D-2.2',
      text: 'Duplicates (same id and subscriber) are skipped',
      tests: [
        middleware('duplicates, at once and later: the effect happens once'),
        inbox('is new once for each subscriber, source and id'),
      ],
    },
    {
      id: 'D-2.3',
      text: 'The check runs in the transaction of the middleware',
      tests: [middleware('nothing of it when the handler throws'), inbox('a rollback forgets')],
    },
    {
      id: 'D-2.4',
      text: 'It needs a transaction',
      tests: [
        middleware('what is missing or in the wrong order fails at the start'),
        inbox('is refused outside of a transaction'),
      ],
    },
    { id: 'D-2.5', text: 'A duplicate is acked', tests: [middleware('all of them are acked')] },
    {
      id: 'D-3.1',
      text: 'Outputs are written to the outbox in the transaction',
      tests: [
        middleware('business write, inbox and outputs are one'),
        middleware('nothing of it when the outbox fails'),
        crash('while it consumes: every effect happens once, and so do its outputs'),
      ],
    },
    {
      id: 'D-3.2',
      text: 'No output is passed on',
      tests: [middleware('business write, inbox and outputs are one')],
    },
    {
      id: 'D-3.3',
      text: "The handler's contract is unchanged: it returns messages",
      tests: [middleware('subscriber and topic are chosen, and outputs stay in their order')],
    },
    {
      id: 'D-3.4',
      text: 'It needs a transaction',
      tests: [middleware('what is missing or in the wrong order fails at the start')],
    },
    {
      id: 'D-3.5',
      text: 'Data and attributes are stored, and come out as they went in',
      tests: [
        owner('everything of a message survives: attributes, extensions, text and bytes'),
        conformance('every attribute and extension survives, with its type'),
      ],
    },
    {
      id: 'D-4.1',
      text: 'The outbox is polled at an interval that can be set',
      tests: [
        polling('without wake-ups the table is looked at as often as the relay is told, and no more often'),
        defaults('looks as often as it is told'),
        flow('waits longer and longer, up to poll.max'),
      ],
    },
    {
      id: 'D-4.2',
      text: 'It gives raw messages whose settlement is bound to the row',
      tests: [outboxSource('an outbox is a source for a router')],
    },
    {
      id: 'D-4.3',
      text: 'An ack marks the row as published',
      tests: [
        outboxSource('an ack publishes the row, a nack leaves it for a later try'),
        owner('publishes what was committed, once, and keeps it as published'),
      ],
    },
    {
      id: 'D-4.4',
      text: 'A nack leaves it for a later try',
      tests: [outboxSource('a nack leaves it for a later try')],
    },
    {
      id: 'D-4.5',
      text: 'It stops cleanly when it is told',
      tests: [owner('started, it is woken by a commit, and stops when told')],
    },
    {
      id: 'D-4.6',
      text: 'The batch size can be set',
      tests: [
        polling('no more are taken at once than the relay is told, and not less while there are'),
        defaults('takes as many at first as it is told, and never more than it is told'),
        conformance('gives no more than asked for, by count and by bytes, and at least one'),
      ],
    },
    {
      id: 'D-5.1',
      text: 'Old entries are removed at an interval that can be set',
      tests: [
        cleaner('runs as often as it is told, in batches as large as it is told'),
        cleaner('pauses for as long as a batch took, runs every minute, and stops between two batches'),
      ],
    },
    {
      id: 'D-5.2',
      text: 'The retention can be set; 7 days for an outbox, 30 for an inbox',
      tests: [
        cleaner('removes what was published before the retention, and nothing else'),
        cleaner('a cleaner goes over outbox and inbox until nothing is left, each with its own retention'),
        wiring('one cleaner for outbox and inbox, with the retention and the archive the outbox was given'),
      ],
    },
    {
      id: 'D-5.3',
      text: 'Of the outbox only published entries are removed',
      tests: [cleaner('removes what was published before the retention, and nothing else')],
    },
    { id: 'D-5.4', text: 'It stops when told', tests: [cleaner('stops between two batches')] },
    {
      id: 'D-5.5',
      text: 'It neither blocks nor disturbs what moves',
      tests: [
        cleaner('two cleaners and many writers: each row once, no pending one touched'),
        cleaner('waits for nobody: rows that another has locked are left to it'),
        claims('cleaning passes over what another has locked:'),
      ],
    },
    {
      id: 'D-6',
      text: 'End to end: order service, outbox, relay, consumer with inbox; killed in the middle',
      tests: [
        examples('every event arrives, once in effect'),
        examples('02-postgres-outbox.ts does so on a server'),
        readme('the first sample'),
      ],
    },
  ],
}

const transactionRows: Chapter = {
  title: 'Units of work',
  lines: [
    {
      id: 'TX-1',
      text: 'withTransaction: nested calls join, an inner failure rolls back the whole, commit and rollback are not cut short, COMMIT answered ROLLBACK is an error',
      tests: [
        unit('inner calls join: one transaction, committed at the end'),
        unit('an inner failure rolls back the whole, even when it is caught'),
        middleware('a signal that comes with the commit does not cut it short'),
        database('COMMIT answered with ROLLBACK is an error'),
        database('the error of the function stays the one that is thrown'),
      ],
    },
    {
      id: 'TX-2',
      text: 'The current transaction is ambient and explicit; what needs one throws without it',
      tests: [
        unit('the transaction is current inside and nowhere else'),
        unit('what needs one says so when there is none'),
        enqueue('withTransaction gives the transaction by itself; outside there is none'),
        enqueue('a pool is refused, and a client that has not begun'),
      ],
    },
    {
      id: 'TX-3',
      text: 'Works in the transaction the user has: pg, postgres.js, PGlite, anything that runs SQL',
      tests: [
        sqlOf('of pg: a client within BEGIN'),
        sqlOf('of postgres.js: the sql of begin()'),
        sqlOf('of PGlite: the tx of transaction()'),
        sqlOf('anything that runs SQL'),
        unit("the transaction has the driver's own type"),
      ],
    },
  ],
}

const postgresRows: Chapter = {
  title: 'PostgreSQL',
  lines: [
    {
      id: 'PG-1',
      text: 'Schema on request, idempotent, printable, upgraded in place, with a down; names validated and quoted; old servers refused',
      tests: [
        migrate('create the tables, and change nothing when run again'),
        migrate('what is printed is what is run'),
        migrate('a table in use is upgraded in place, with its rows'),
        migrate('modules have tables of their own, in schemas of their own'),
        migrate('the table name'),
        migrate('a server that is too old is refused'),
      ],
    },
    {
      id: 'PG-2',
      text: "A row's columns and what they may hold; its state told in one place; what is ready costs the same whatever lies before; changing the reader on a live table republishes nothing",
      tests: [
        row('has a column for everything the event and its options say'),
        row('is ready, of no tenant, of version 1 and of the topic of its type when nothing else is said'),
        row('the table refuses'),
        row('under a lease the row says since when, until when and under which token'),
        row('an ack after a retry clears the error, and keeps the attempt'),
        claimCost('cost the same behind any number of others'),
        conformance('list: every event in its state'),
        conformance('modes: changing the way to read loses nothing and publishes nothing twice'),
        switching('owner, lease, owner: nothing is published again'),
      ],
    },
    {
      id: 'PG-3',
      text: "Enqueue in the caller's transaction, one or many, idempotent by event id; a pool is refused; a rollback leaves nothing",
      tests: [
        enqueue('answers the sequence of one, and of many in order'),
        enqueue('the same event again answers its first sequence and changes nothing'),
        enqueue('a duplicate waits for the transaction that has the id'),
        enqueue('under REPEATABLE READ a duplicate that cannot be seen is a clear error'),
        adminRelay('the same id again changes nothing while ids are kept'),
        enqueue('with a table of ids, events are removed once published'),
        enqueue('a pool is refused'),
        conformance('a rollback leaves nothing, and the event can be enqueued again'),
        row('an event that passes through keeps its bytes, and an id that is no UUID'),
        by('core/id')('has this one for ever'),
      ],
    },
    {
      id: 'PG-4',
      text: 'Two readers; dispatch outside of transactions; leases on the database clock, renewed, fenced; the defaults',
      tests: [
        dispatch('events are dispatched outside of any transaction'),
        claims('a claim under leases passes over what another has locked:'),
        fences('a term ends by the clock: a settlement that waited past its end changes nothing'),
        defaults('a relay that is told nothing'),
        conformance('owner: what a relay settles after another took over changes nothing, and is counted'),
        conformance('lease: what is renewed while it is worked on stays with its relay'),
        conformance('lease: what is settled after the lease ran out is stale'),
        outboxSource('a handler that takes longer than the lease keeps its row'),
        zombie('another takes over, and what the first settles then changes nothing and is counted'),
      ],
    },
    {
      id: 'PG-5',
      text: 'Adaptive polling, and a wake-up that costs writers nothing while relays are busy',
      tests: [
        conformance('owner: a session that waits is woken by a commit'),
        owner('started, it is woken by a commit'),
        wake('of 1,000 events committed while the relay goes idle none waits for a poll'),
        wake('while relays are busy writers tell nobody, and the first that finds one idle does'),
        defaults('looks again after 1 s, doubling to 5 s, while there is nothing'),
        polling('without wake-ups the table is looked at as often as the relay is told, and no more often'),
        flow('waits longer and longer, up to poll.max, and shortly again after something came'),
        broken('behind a pooler nothing is prepared, and listening is refused'),
        switching('it polls, and an owner says what is lost'),
      ],
    },
    {
      id: 'PG-6',
      text: 'A failed message spends an attempt; an outage and a stop spend none; a crash is charged to the culprit alone',
      tests: [
        row('a retry: with the time, the reason and the attempt, nobody’s any more'),
        owner('an outage spends no attempts'),
        window('takes no success from before for a proof: in an outage nobody is charged'),
        drain('aborts handlers when the grace is over; one that gives up is released, not charged'),
        poison('an event that always closes the broker connection is charged and finally dead'),
        poison('an event that kills its relay again and again is finally dead'),
      ],
    },
    {
      id: 'PG-7',
      text: 'Dead events are kept, listed, shown, re-armed, discarded with an audit note; pending ones only by window, after a count',
      tests: [
        admin('lists every state page by page, without payloads, nothing twice'),
        admin('shows one event with its payload'),
        admin('re-arms one, some and all dead events, which keep their place'),
        admin('discards only the dead that the filter says, with a line in the audit'),
        admin('discards pending events by tenant or topic and window only'),
        admin('replays published events under their ids'),
        admin('an action and its line in the audit are one'),
        stats('are within 5 %, and labelled'),
        stats('read no more than they may, however large the table is'),
      ],
    },
    {
      id: 'PG-8',
      text: 'Order per key across retries, crashes, relays and re-arms; block or continue behind a dead one',
      tests: [
        owner('a key waits for its failed event, in order; other keys go on'),
        owner('a dead event blocks its key until it is discarded, or re-armed in its place'),
        by('postgres/dead-key')('what is enqueued later waits, and goes on in order when that is re-armed'),
        by('postgres/dead-key')('what is scheduled waits too when its time has come'),
        owner('with deadKey: continue a key goes on without its dead event'),
        order('a number drawn early and committed late goes out before the next of its key'),
        enqueue('serialize: numbers of one key are in commit order, whoever began first'),
        many('one owner at a time, 2 processes: nothing is in flight twice, every key in order'),
        anyFailure('on PostgreSQL > three shards: in order by key and once, whatever fails'),
      ],
    },
    {
      id: 'PG-9',
      text: 'Many relays: one active, or shards that move; leadership is a row with an epoch and an expiry',
      tests: [
        owner('a second relay waits, and takes over when the first stops'),
        many('owners of shards that come, leave and die: every shard moves on, every key stays in order'),
        zombie('it stops before its term ends, another goes on, nothing is lost'),
        conformance('a term that is not renewed runs out, and its next holder learns of it'),
      ],
    },
    {
      id: 'PG-10',
      text: 'Cleaner in bounded batches, delete-on-publish, time partitions, archive that can be read',
      tests: [
        cleaner('removes what was published before the retention, and nothing else'),
        cleaner('two cleaners and many writers: each row once, no pending one touched'),
        cleaner('pauses for as long as a batch took, runs every minute, and stops between two batches'),
        claims('cleaning passes over what another has locked:'),
        cleaner('removes at most as many as it may, the oldest first'),
        owner('with deleteOnPublish nothing is left'),
        partitions('are dropped once all in them is published and past the retention'),
        partitions('what has no partition is taken in all the same, and removed one by one'),
        wiring('one cleaner for outbox and inbox, with the retention and the archive the outbox was given'),
        archive('what is read back is what was relayed'),
        archive('what cannot be written is not removed'),
        archive('killed between the file and the removal: nothing is lost'),
      ],
    },
    {
      id: 'PG-11',
      text: "Inbox: unique by subscriber, source and id, in the handler's transaction; a duplicate leaves it usable; cleaned",
      tests: [
        inbox('is new once for each subscriber, source and id'),
        inbox('a duplicate leaves the transaction usable'),
        inbox('without id, source or subscriber it is an error that no retry mends'),
        inbox('cleaning takes the old only, so many at a time'),
        crash('while it consumes: every effect happens once, and so do its outputs'),
        row('has subscriber, source and id as they are, and of what is too long or no text its hash'),
      ],
    },
    {
      id: 'PG-12',
      text: 'Transaction, inbox and outbox as middleware, alone and together; misordering fails at start',
      tests: [
        middleware('business write, inbox and outputs are one: all of it with the commit, before the ack'),
        middleware('what is missing or in the wrong order fails at the start'),
        middleware('subscriber and topic are chosen'),
        crash('while it consumes an outbox: every effect happens once, and so do its outputs'),
      ],
    },
    {
      id: 'PG-13',
      text: 'The outbox as a source; a row in flight is not given again',
      tests: [
        outboxSource('an outbox is a source for a router'),
        outboxSource('a row in flight is not given again by the next take'),
      ],
    },
    {
      id: 'PG-14',
      text: 'No payload in last_error or logs; tenants as a label only when listed',
      tests: [
        owner('with a reason that does not show its payload'),
        observability('logging')('no payload in any of them, whatever happens to a message'),
        observability('metrics')('tenants are no label unless listed'),
        errors('never reads what drivers say about the row'),
      ],
    },
    {
      id: 'PG-15',
      text: 'The same on PGlite, in a folder, and through a SIGKILL',
      tests: [
        by('postgres/conformance-pglite')('conformance on PGlite'),
        examples('every event arrives, once in effect'),
      ],
    },
  ],
}

const faultRows: Chapter = {
  title: 'Crashes and faults',
  lines: [
    {
      id: 'F-1',
      text: 'SIGKILL at each named point of enqueue, take, publish, settle and consume: nothing lost, nothing repeated after the inbox',
      tests: [crash('a process killed'), crash('a process that is left alone comes by every point, and by no other,')],
    },
    {
      id: 'F-2',
      text: 'Many relay processes at once, both readers; shards that move while running',
      tests: [many('many relays')],
    },
    {
      id: 'F-3',
      text: 'A relay suspended past its lease, and one cut off from the database but not from the broker',
      tests: [zombie('a relay suspended past its lease'), zombie('an owner cut off from the database')],
    },
    {
      id: 'F-4',
      text: 'Poison: closes the broker connection, or kills the process; the others flow',
      tests: [poison('poison')],
    },
    {
      id: 'F-5',
      text: 'COMMIT answered with ROLLBACK: an error, no ack',
      tests: [
        middleware('COMMIT answered with ROLLBACK: not acked'),
        switching('COMMIT is answered with ROLLBACK: the message is not acked, and comes again'),
      ],
    },
    {
      id: 'F-6',
      text: 'PostgreSQL restarted in the middle, again and again; the broker down for many leases',
      tests: [restart('outages')],
    },
    {
      id: 'F-7',
      text: 'Writers that commit, roll back, use savepoints, prepare and wait; a transaction left open for the whole run',
      tests: [writers('writers of all kinds')],
    },
    {
      id: 'F-8',
      text: 'Bad input: one clear error each, nothing lost, nothing half-done',
      tests: [
        enqueue('bad input'),
        migrate('a wrong role and a read-only connection are told so, and nothing is half-done'),
        owner('a payload of 10 MB goes through'),
        admin('bad input is told, and changes nothing'),
      ],
    },
    {
      id: 'F-9',
      text: 'What verifies all this finds faults that are planted: a gap skipped, no fence, an early ack, a key out of order, an error swallowed',
      tests: [verify('the verifiers')],
    },
  ],
}

const coreRows: Chapter = {
  title: 'Core',
  lines: [
    {
      id: 'CORE-1',
      text: 'Messages are CloudEvents 1.0, checked against the official SDK; locals never reach the wire',
      tests: [
        by('cloudevents/sdk')('what we write, the SDK reads the same'),
        by('cloudevents/sdk')('what the SDK writes, we read the same'),
        message('never reach the wire'),
      ],
    },
    {
      id: 'CORE-2',
      text: 'Acking settles once; a failed ack is visible; shared acking',
      tests: [
        acking('settles once, whatever the order of calls'),
        acking('a callback that fails is settled nevertheless'),
        acking('acks after every part has, and the first nack settles at once'),
        source('that cannot be told a settlement is told again until it knows, and telemetry says so'),
      ],
    },
    {
      id: 'CORE-3',
      text: 'Ack on success, manual, forward',
      tests: [routerAcking('ack on success'), routerAcking('manual ack'), routerAcking('forwarded ack')],
    },
    {
      id: 'CORE-4',
      text: 'Pipes with concurrency, bounded buffers and backpressure; a failing source backs off',
      tests: [
        pipes('generate'),
        pipes('from an iterable'),
        pipes('sink'),
        flow('takes no more than the buffer holds, by count'),
        flow('takes no more than the buffer holds, by bytes'),
        keys('has one of a key in flight, others of other keys beside it'),
        source('is opened again and again with growing pauses, not in a hot loop'),
      ],
    },
    {
      id: 'CORE-5',
      text: 'Router: exact types, first middleware outermost, commit before ack, frozen at start, a policy for unknown types',
      tests: [
        router('the first registered is outermost'),
        router('acking is outside all of it'),
        router('a commit that fails means no ack'),
        router('are found by exact type'),
        router('are frozen when the router starts'),
        router('a second one for a type is an error'),
        router('a message no handler knows'),
      ],
    },
    {
      id: 'CORE-6',
      text: 'Engine: named inputs and outputs, added while running, a pass-through',
      tests: [
        engine('carries a message from a named input'),
        engine('passes through without decoding'),
        engine('takes inputs and outputs while it runs'),
      ],
    },
    {
      id: 'CORE-7',
      text: 'Graceful stop, and a whole process in order',
      tests: [
        drain('lets what is in flight finish, gives back the rest at once, and takes no more'),
        drain('aborts handlers when the grace is over; one that gives up is released, not charged'),
        lifecycle('stops in order: requests, consumers, relays, connections, stores'),
        lifecycle('SIGTERM ends a process in order, after what is in flight has finished'),
        properties('each message was settled once, or given back, or never taken'),
      ],
    },
    {
      id: 'CORE-8',
      text: 'One error class, Reject and RetryLater, a classifier that can be replaced',
      tests: [
        errors('an error is classified'),
        flow('Reject is dead at once, RetryLater comes when it said'),
        flow('a classifier of the user decides'),
      ],
    },
    {
      id: 'CORE-9',
      text: 'Middleware: repeat, timeout, dead-letter, correlation, tracing, metrics, logging',
      tests: [
        routerMiddleware('repeat'),
        routerMiddleware('timeout'),
        routerMiddleware('dead-letter'),
        routerMiddleware('correlation'),
        observability('tracing')('request, message and what follows from it are one trace'),
        observability('metrics')('counts what was taken, settled, stale and failed, by flow'),
        observability('metrics')('times are in seconds'),
        observability('logging')('a record has names, ids, counts and times, and nothing that is undefined'),
        observability('logging')(
          'the level of an event may depend on it: a stale settlement is a warning, success is not',
        ),
      ],
    },
    {
      id: 'CORE-10',
      text: 'Event definitions with schema and versions',
      tests: [
        event('older versions are raised step by step to the newest'),
        event('an unknown newer version is tried with the newest known schema'),
        event('what says no version is of version 1'),
        event('invalid data is permanent'),
        router('versions'),
      ],
    },
    {
      id: 'CORE-11',
      text: 'In-process event bus: publish, and an awaited form that gathers every failure',
      tests: [
        bus('publish returns at once, and tells of subscribers that fail'),
        bus('dispatch runs every subscriber'),
        bus('a message that nobody wants is an error'),
      ],
    },
  ],
}

export const chapters: readonly Chapter[] = [
  outboxLines,
  operationLines,
  middlewareLines,
  transactionRows,
  postgresRows,
  faultRows,
  coreRows,
  redisLines,
  redisOutboxLines,
  redisRows,
  redisOutboxRows,
  consumerLines,
  brokerRows,
  synchronousSagaLines,
  sagaRecordLines,
  compensationLines,
  scannerLines,
  asynchronousSagaLines,
  sagaTimeoutLines,
  sagaRows,
  readModelLines,
  projectionRows,
  operationRows,
]
