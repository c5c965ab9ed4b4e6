/** What must hold of sagas that work by messages, and of sagas row by row; see readiness-map.ts. */
import type { Chapter } from './readiness-map.ts'

const by = (file: string) => (name: string) => ({ file: `test/${file}.test.ts`, name })
const barrier = by('store/barrier')
const claims = by('saga/claims')
const conformance = by('postgres/conformance')
const definition = by('saga/definition')
const kills = by('saga/faults/kills')
const late = by('saga/requests-machine')
const machine = by('saga/machine')
const matrix = by('saga/crash-matrix')
const messages = by('saga/crash-matrix-requests')
const orders = by('saga/statement-orders')
const replies = by('saga/replies')
const requests = by('saga/requests')
const row = by('postgres/row')
const rows = by('postgres/saga-rows')
const runner = by('saga/runner')
const sagas = by('postgres/sagas')
const told = by('saga/told')
const unit = by('postgres/store')

const START = requests(
  'business row, saga, first request and the events of the entity are one transaction, and it returns pending',
)
const ROLLBACK = requests('after a rollback there is neither, and the entity still has its events')
const DEADLINE = requests('the deadline is five minutes where none is given')
const NO_ANSWER = requests('no answer within its time: undone by a message with the same key')
const STUCK = requests('a compensation that is stuck is failed after its time, and waits for a person')
const RACES = sagas(
  'two claims and the runner racing a thousand times: one of them has it, and the rest change nothing',
)
const EVERYBODY = orders(", a deadline and an operator's compensate: ")

export const asynchronousSagaLines: Chapter = {
  title: 'Asynchronous sagas',
  lines: [
    {
      id: 'B-17.1',
      text: 'Business row, saga and events are one transaction',
      tests: [START, replies('a start is one transaction with its first request')],
    },
    { id: 'B-17.2', text: 'It returns at once, pending', tests: [START] },
    {
      id: 'B-17.3',
      text: 'Events are those that the entity has collected',
      tests: [START, unit('need a transaction, or are cleared by hand in one of your own')],
    },
    {
      id: 'B-17.4',
      text: 'An event carries its type, version and aggregate to the outbox',
      tests: [row('has a column for everything the event and its options say')],
    },
    { id: 'B-17.5', text: 'After a rollback the entity still has its events', tests: [ROLLBACK] },
    { id: 'B-17.6', text: 'They are cleared after the commit only', tests: [START] },
  ],
}

export const sagaTimeoutLines: Chapter = {
  title: 'Time-outs of sagas',
  lines: [
    { id: 'B-18.1', text: 'An answer is waited for 5 minutes', tests: [DEADLINE] },
    {
      id: 'B-18.2',
      text: 'It is looked for in time: by when it is due, not by an interval',
      tests: [DEADLINE, claims('looks when what it gave back is due, not at its next look')],
    },
    { id: 'B-18.3', text: 'One that was running is claimed and undone', tests: [NO_ANSWER] },
    {
      id: 'B-18.4',
      text: 'One that was compensating has failed, for a person to look at, and is told with id and type',
      tests: [
        STUCK,
        told('a compensation that is stuck, because nobody confirms it, is an error with its saga and type'),
      ],
    },
    { id: 'B-18.5', text: 'Of all that would change it at once each has its turn', tests: [EVERYBODY, RACES] },
  ],
}

export const sagaRows: Chapter = {
  title: 'Sagas, row by row',
  lines: [
    {
      id: 'SG-1',
      text: 'Definition: named and typed steps with run, undo, time-outs and one key; sleeps; messages from outside; a point of no return',
      tests: [
        definition('results of earlier steps are typed in later ones, as they come back from JSON'),
        definition('a repeated name is a type error, and an error'),
        runner('a call that takes longer than 5 s is given up, and its signal says so'),
        machine('the key is the same in every state of a step'),
        runner('a sleep lasts as long as it says, and nobody holds it meanwhile'),
        requests('is found by its aggregate; an early one is kept and does not wake what sleeps'),
        runner('behind the point of no return nothing is undone: held'),
        sagas('no connection is held while a step runs'),
      ],
    },
    {
      id: 'SG-2',
      text: 'Intent before, result after; unknown is a state with a policy; an outage compensates nobody; each write is fenced; three steps are four commits',
      tests: [
        rows('the tables have the columns, words and keys of other people’s saga tables'),
        machine('by default it is tried again with the same key'),
        machine('with a check it is asked; when it is found it is done, when not it runs again'),
        machine('unknown: undo runs its own undo at once, or when the check has not found it'),
        machine('unknown: hold waits for a person, who is told why'),
        machine('a permanent error is not retried, and its own undo runs'),
        runner('while all sagas fail at one step it is waited for, others go on, and nobody is compensated'),
        conformance('saga store > a write is fenced by the version, and by the runner where one is given'),
        sagas('three steps in run() cost four commits, and no claim'),
        kills('orders under failing services and killed runners: each completed or compensated, and all adds up'),
      ],
    },
    {
      id: 'SG-3',
      text: 'Undo in reverse, on a signal of its own, with time-outs and retries; compensated, or failed and retried by a person',
      tests: [
        runner('throws what a step was refused with, after the others were undone in reverse order'),
        runner('a time-out of an undo is 5 s, on a signal that the caller cannot abort'),
        runner('one that gives up after its hour leaves the saga failed, and the others undone'),
        claims('a failed saga is retried from its undo'),
      ],
    },
    {
      id: 'SG-4',
      text: 'Waited for, or started with a commit and answered by messages; a late success is undone again',
      tests: [
        START,
        ROLLBACK,
        requests('goes through the outbox with the intent, carries its saga, and its reply completes the saga'),
        replies('inbox, lock, decision, write and the next request are one commit'),
        requests('the same reply twice changes nothing the second time, with the same id or another'),
        late('a success after failed goes back to compensating'),
        replies('time-out, check negative, undo, the run lands late: a success after compensated, twice'),
      ],
    },
    {
      id: 'SG-5',
      text: 'What is stale is claimed once and resumed or undone; a deadline is the same transition as a refusal',
      tests: [
        claims('a runner that is silent for 10 minutes is taken over, not before; what it was at is unknown'),
        conformance('saga store > many claims at once give each saga to one'),
        RACES,
        late('no answer in time is the same transition as a refusal'),
        DEADLINE,
        claims('looks every two minutes at the latest, also when nobody tells it'),
      ],
    },
    {
      id: 'SG-6',
      text: 'Stores: PostgreSQL, PGlite and memory, by one suite',
      tests: [
        conformance('saga store'),
        by('postgres/conformance-pglite')('saga store'),
        by('memory/conformance')('saga store'),
      ],
    },
    {
      id: 'SG-7',
      text: 'A barrier for participants: a run twice, an undo without its run, a run after its undo; also in SQL',
      tests: [
        barrier('a repeated run does nothing and returns the replies again, under another id'),
        barrier('an undo without a run leaves a tombstone and is called all the same; the run after it is refused'),
        barrier('a run after it was undone is refused, although it ran'),
        barrier('a run that was rolled back leaves no record'),
        barrier('a participant in Python: run, repeat, undo, a run after it; its replies drive the saga'),
      ],
    },
    {
      id: 'SG-8',
      text: 'A kit tries every crash, failure, time-out and late answer; a saga ends on the version it began with',
      tests: [
        matrix('an order saga survives every crash and failure'),
        matrix('a service that forgets its keys is found out'),
        messages('requests and replies survive every crash, and every loss, repeat, delay and disorder of messages'),
        messages('a participant without a barrier is found out'),
        replies('a definition upgraded while sagas run: each ends on the version it began with'),
        claims('one that was changed under its version, or that nobody has, is not run, and told after a minute'),
      ],
    },
  ],
}
