/** What must hold of read models, and the tests that show it; see readiness-map.ts. */
import type { Chapter } from './readiness-map.ts'

const by = (file: string) => (name: string) => ({ file: `test/${file}.test.ts`, name })
const broker = by('projection/broker')
const brokers = by('projection/over-brokers')
const enrich = by('projection/enrich')
const examples = by('examples/examples')
const history = by('projection/history.property')
const kills = by('projection/faults/kills')
const list = by('projection/order-list')
const log = by('postgres/log')
const looks = by('postgres/log-torture')
const pages = by('examples/pages')
const projector = by('projection/projector')
const refusals = by('projection/refusals')
const service = by('examples/order-service')
const waits = by('projection/wait-for')

const EXAMPLE = examples('13-cqrs.ts prints what its .out file says')
const SERVICE = service('a process is killed, and orders, view, invoices and stock add up')
const GUIDE = by('examples/docs')('docs/guides/projections.md says when a read model is worth it, and when not')
const LIST = list('an order is created with a name that another service knows; its status changes')
const FOLD = history('whatever is created, changed and renamed, rolled back, left open')
const PAGES = pages('a page, the first or a later one, is read from the index alone in its order: no join, no sort')
const KINDS = projector('events of all kinds, in few batches: the view is as if they had been applied one by one')

export const readModelLines: Chapter = {
  title: 'Read models',
  lines: [
    { id: 'B-19.1', text: 'The guide says when to introduce one, and when not', tests: [GUIDE] },
    { id: 'B-19.2', text: 'Events must be there first', tests: [GUIDE] },
    {
      id: 'B-19.3',
      text: 'A command writes the main tables, and its event through the outbox',
      tests: [EXAMPLE, SERVICE],
    },
    {
      id: 'B-19.4',
      text: 'Events reach the projector through the outbox and a broker, or from the log',
      tests: [LIST, brokers('duplicates, replays, lookups that fail: the view is the fold of what was committed')],
    },
    {
      id: 'B-19.5',
      text: 'A row of the view has all a list shows, in columns of their types: no join',
      tests: [LIST, PAGES, projector('columns of any type: each gets the value that was given, or refuses it')],
    },
    { id: 'B-19.6', text: 'An index serves the list of a buyer, the newest first', tests: [PAGES] },
    {
      id: 'B-19.7',
      text: 'Created: another service is asked for a name, and the row is inserted or replaced',
      tests: [LIST, FOLD],
    },
    {
      id: 'B-19.8',
      text: 'A lookup that fails is tried again',
      tests: [
        LIST,
        enrich('one that fails while others do not is tried again, and given up after 30 s'),
        enrich('while all fail nobody is given up; when they answer, all go on'),
      ],
    },
    { id: 'B-19.9', text: 'Status changed: the row has it, with its time', tests: [LIST, KINDS] },
    { id: 'B-19.10', text: 'Renamed elsewhere: all rows of that buyer have the new name', tests: [LIST, KINDS, FOLD] },
    {
      id: 'B-19.11',
      text: 'Events of other types are passed over',
      tests: [
        projector('started, it applies what is written from then on, and passes over what it has no handler for'),
      ],
    },
    {
      id: 'B-19.12',
      text: 'Queries read the view page by page, without the entity',
      tests: [EXAMPLE, SERVICE, PAGES],
    },
    { id: 'B-19.13', text: 'Commands go to the write side, queries to the view', tests: [EXAMPLE, SERVICE] },
    {
      id: 'B-19.14',
      text: 'Who has just written is flagged for 3 s, in Redis or in memory',
      tests: [
        list('a flag per user that Redis forgets after 3 s'),
        refusals('who has just written is remembered for 3 s'),
      ],
    },
    {
      id: 'B-19.15',
      text: 'Who is flagged reads from the main store',
      tests: [EXAMPLE, refusals('Redis that cannot be asked: the main store is read, and a write is not made to fail')],
    },
    { id: 'B-19.16', text: 'Or a command returns what it has written', tests: [EXAMPLE] },
  ],
}

export const projectionRows: Chapter = {
  title: 'Projections, row by row',
  lines: [
    {
      id: 'CQ-1.1',
      text: 'View and checkpoint are one transaction, and fenced: killed, suspended or taken over, each event counts once',
      tests: [
        kills('killed at after-advance: whoever comes then applies each event once'),
        kills('suspended at after-advance, and woken when another has taken over: its writes change nothing'),
        projector('another has the right to it by now: what it has read is not written'),
        FOLD,
      ],
    },
    {
      id: 'CQ-1.2',
      text: 'Replays and disorder take back nothing; what is early or fails is parked, and holds its key',
      tests: [
        broker('duplicates and replays do not take back newer state, and add nothing twice'),
        broker('an update that comes before its row is parked, holds its key, and is applied when the row is there'),
        projector('an event that cannot be written is found by halving and parked alone'),
        projector('a parked event is enriched anew and tried again; then its key goes on in order'),
        projector('at the bound of parked events it stops and says so; when one is skipped, it goes on'),
      ],
    },
    {
      id: 'CQ-1.3',
      text: 'A log is read up to where nothing can appear any more; gaps stall nothing; who holds it back is told',
      tests: [
        looks('gives every committed event once and in order, while events are relayed, archived and replayed'),
        log('a writer that begins between two looks is not waited for'),
        log('who holds it back is told by the process of the server'),
        log('a prepared transaction holds it back, by name, and its numbers come when it commits'),
      ],
    },
    {
      id: 'CQ-3',
      text: 'A token of a write is waited for, with a true answer: reached, timeout, stalled, parked, building, unknown',
      tests: [
        waits('reached: in the projector’s own process, and from another place, when the row is there'),
        waits('unknown while it never ran; building while it reads what was there before; stalled when nobody runs it'),
        waits('a signal ends the waiting, also one that was over before'),
        waits('stalled: an open transaction holds the log back, and is named'),
        waits('parked: the write itself, or one before it of its key, with the reason'),
        waits('a token of another log, and what is no token, are refused'),
        GUIDE,
      ],
    },
    {
      id: 'CQ-4',
      text: 'Pages by cursors that nobody can make up, or use for another list',
      tests: [EXAMPLE, SERVICE, PAGES],
    },
  ],
}
