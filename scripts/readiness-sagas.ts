/** What must hold of sagas that wait for their services, and the tests that show it; see readiness-map.ts. */
import type { Chapter } from './readiness-map.ts'

const by = (file: string) => (name: string) => ({ file: `test/${file}.test.ts`, name })
const claims = by('saga/claims')
const conformance = by('postgres/conformance')
const doubts = by('saga/doubts')
const floor = by('postgres/sagas-floor')
const kills = by('saga/faults/kills')
const machine = by('saga/machine')
const matrix = by('saga/crash-matrix')
const runner = by('saga/runner')
const rows = by('postgres/saga-rows')
const sagas = by('postgres/sagas')
const source = by('flow/source')
const suspended = by('saga/faults/suspended')
const told = by('saga/told')

const SURVIVES = matrix('an order saga survives every crash and failure')
const REFUSED = runner('throws what a step was refused with, after the others were undone in reverse order')
const TABLES = rows('the tables have the columns, words and keys of other people’s saga tables')
const TOUCHED = rows('updated_at and the version follow each write, without a trigger')
const UNDO_TIME = runner('a time-out of an undo is 5 s, on a signal that the caller cannot abort')
const GIVES_UP = runner('one that gives up after its hour leaves the saga failed, and the others undone')
const SILENT = claims('a runner that is silent for 10 minutes is taken over, not before; what it was at is unknown')
const RACES = sagas(
  'two claims and the runner racing a thousand times: one of them has it, and the rest change nothing',
)

export const synchronousSagaLines: Chapter = {
  title: 'Synchronous sagas',
  lines: [
    {
      id: 'B-13.1',
      text: 'Services are called one after the other while the caller waits',
      tests: [runner('drives a saga through its steps and returns what they returned, as it comes back from JSON')],
    },
    {
      id: 'B-13.2',
      text: 'A step that fails has the others undone at once, in reverse; the caller gets its error',
      tests: [REFUSED],
    },
    {
      id: 'B-13.3',
      text: 'What was done is in the database: a crash after a step, or before its undo, loses nothing',
      tests: [SURVIVES, kills('orders under failing services and killed runners: each completed or compensated')],
    },
    {
      id: 'B-13.4',
      text: 'The saga is written, as running, with its type and its aggregate, before its first step runs',
      tests: [
        conformance('saga store > a saga comes back as it was inserted, with the intent of its first step'),
        machine('the first intent comes with the beginning'),
        runner('it is written, as running, with its type and its aggregate, before its first step runs'),
      ],
    },
    {
      id: 'B-13.5',
      text: 'A step has 5 s',
      tests: [runner('a call that takes longer than 5 s is given up, and its signal says so')],
    },
    {
      id: 'B-13.6',
      text: 'Each result is written before the next step runs',
      tests: [
        machine('the result of one and the intent of the next are one decision'),
        sagas('three steps in run() cost four commits, and no claim'),
      ],
    },
    {
      id: 'B-13.7',
      text: 'The error of a step is kept with the step',
      tests: [
        conformance('saga store > steps come back as they were written, in order, with the times'),
        doubts('the text of an error that a store cannot hold is no reason to hold the saga'),
      ],
    },
    {
      id: 'B-13.8',
      text: 'A step that ran and could not be recorded counts as one that ran',
      tests: [
        doubts('a transient error of the store loses no result: the step is not run again'),
        sagas('a write whose answer is lost is looked up, and the step is not run again'),
        machine('a takeover finds an intent unknown: the policy of the step'),
      ],
    },
    {
      id: 'B-13.9',
      text: 'After the last step it is completed',
      tests: [machine('the last result ends it'), runner('find by aggregate and status')],
    },
  ],
}

export const sagaRecordLines: Chapter = {
  title: 'Records of sagas',
  lines: [
    {
      id: 'B-14.1',
      text: 'An execution has type, aggregate, status, step, version and times; a step its status, times and error',
      tests: [TABLES, conformance('saga store > sagas are found by type, aggregate and status, newest first')],
    },
    {
      id: 'B-14.2',
      text: 'A step is pending, completed, compensated or compensation_failed, and says when it ran and was undone',
      tests: [TABLES, GIVES_UP, conformance('saga store > steps come back as they were written, in order')],
    },
    { id: 'B-14.3', text: 'A saga has one row for each step', tests: [TABLES] },
    {
      id: 'B-14.4',
      text: 'The version is a lock: each write raises it, and one that expects another changes nothing',
      tests: [
        TOUCHED,
        conformance('saga store > a write is fenced by the version, and by the runner where one is given'),
        suspended('an operator raises the version: it goes on; a claim: it stops'),
      ],
    },
    { id: 'B-14.5', text: 'updated_at follows each write', tests: [TOUCHED] },
    {
      id: 'B-14.6',
      text: 'What is looked for is in partial indexes over what is alive',
      tests: [
        rows('what is alive stands in small indexes of its own; what has ended is in none of them'),
        floor('a claim and a look ahead touch no more blocks than without it, but for the first'),
      ],
    },
    {
      id: 'B-14.7',
      text: 'Steps belong to their saga, and go with it',
      tests: [
        rows('a saga is removed with its steps and its audit'),
        conformance('saga store > what has ended is cleaned after its time; what is alive or waits for a person stays'),
      ],
    },
  ],
}

export const compensationLines: Chapter = {
  title: 'Compensation of sagas',
  lines: [
    {
      id: 'B-15.1',
      text: 'It is compensating before anything is undone',
      tests: [
        machine('a refused third step: its own undo does not run, the others in reverse order'),
        runner('it is compensating, where others can see it, before anything is undone'),
      ],
    },
    { id: 'B-15.2', text: 'A caller that cancels its request does not stop an undo', tests: [UNDO_TIME] },
    { id: 'B-15.3', text: 'Undo runs in reverse order of what was done', tests: [REFUSED] },
    { id: 'B-15.4', text: 'An undo has 5 s', tests: [UNDO_TIME] },
    {
      id: 'B-15.5',
      text: 'An undo that fails is recorded with its error and told with saga and step; the others are undone all the same',
      tests: [
        GIVES_UP,
        told('an undo that fails is a warning with its saga and step, and the saga that failed for it is an error'),
      ],
    },
    {
      id: 'B-15.6',
      text: 'When all are undone it has ended, as compensated: nobody takes it for completed',
      tests: [machine('a refused third step: its own undo does not run'), REFUSED],
    },
    {
      id: 'B-15.7',
      text: 'Otherwise it has failed, and is retried by a person',
      tests: [GIVES_UP, claims('a failed saga is retried from its undo')],
    },
    {
      id: 'B-15.8',
      text: 'An undo may come more than once: always with one key, which a service that forgets is found out by',
      tests: [
        runner('one that throws, at once or later, is tried again with the same undo key'),
        matrix('a service that forgets its keys is found out'),
      ],
    },
    {
      id: 'B-15.9',
      text: 'No connection is held while a service is called',
      tests: [sagas('no connection is held while a step runs')],
    },
    {
      id: 'B-15.10',
      text: 'A service that is away fails nobody: its step is waited for',
      tests: [
        runner('while all sagas fail at one step it is waited for, others go on, and nobody is compensated'),
        runner('a service that is away compensates nobody, even one saga alone'),
      ],
    },
    {
      id: 'B-15.11',
      text: 'A step costs one more write',
      tests: [
        sagas('three steps in run() cost four commits, and no claim'),
        sagas('a refused third step with two undos costs six'),
      ],
    },
  ],
}

export const scannerLines: Chapter = {
  title: 'Sagas that are stuck',
  lines: [
    { id: 'B-16.1', text: 'One is stuck when it is silent for 10 minutes', tests: [SILENT] },
    {
      id: 'B-16.2',
      text: 'They are looked for every 2 minutes at the latest',
      tests: [
        claims('looks every two minutes at the latest, also when nobody tells it'),
        doubts('a runner that is never idle > takes over what another left behind'),
      ],
    },
    {
      id: 'B-16.3',
      text: 'It stops when it is told',
      tests: [claims('lets the step finish and gives the saga back at once; another goes on where it was')],
    },
    {
      id: 'B-16.4',
      text: 'A look that fails is told, and repeated',
      tests: [source('is asked again after growing pauses when a take fails, and nothing is lost')],
    },
    {
      id: 'B-16.5',
      text: 'A claim is a compare-and-swap: of many that look, one has it',
      tests: [RACES, conformance('saga store > many claims at once give each saga to one')],
    },
    {
      id: 'B-16.6',
      text: 'Recorded steps say what is to be done: resumed or undone, whether it was running or compensating',
      tests: [SURVIVES, machine('a takeover finds an intent unknown: the policy of the step')],
    },
    { id: 'B-16.7', text: 'It is told, with the id of the saga and the steps known to be done', tests: [SILENT] },
    {
      id: 'B-16.8',
      text: 'One that comes back changes nothing',
      tests: [claims('a zombie wakes up: its write changes nothing, and it stops')],
    },
  ],
}
