import { picture } from './svg.ts'

/** The whole, as the README shows it. */
export function way(): string {
  return picture(
    'An event from one transaction to another',
    900,
    330,
    [
      { x: 2, y: 40, width: 196, height: 150, lines: ['your transaction'], kind: 'group' },
      { x: 12, y: 72, width: 176, lines: ['business write'] },
      { x: 12, y: 130, width: 176, lines: ['outbox.enqueue(tx)'] },
      { x: 260, y: 92, width: 90, height: 60, lines: ['outbox', 'a table'] },
      { x: 390, y: 92, width: 90, height: 60, lines: ['relay', 'in order'] },
      { x: 520, y: 92, width: 100, height: 60, lines: ['broker', 'yours'] },
      { x: 670, y: 40, width: 220, height: 150, lines: ['their transaction'], kind: 'group' },
      { x: 690, y: 72, width: 180, lines: ['inbox: seen before?'] },
      { x: 690, y: 130, width: 180, lines: ['handler, outputs'] },
      { x: 260, y: 240, width: 90, height: 60, lines: ['log', 'the outbox'] },
      { x: 390, y: 240, width: 110, height: 60, lines: ['projection', 'in batches'] },
      { x: 540, y: 240, width: 120, height: 60, lines: ['read tables', 'queries can wait'] },
      { x: 700, y: 240, width: 170, height: 60, lines: ['sagas', 'steps and their undo'] },
    ],
    [
      { points: '198,122 260,122', label: 'COMMIT', at: [229, 112] },
      { points: '350,122 390,122' },
      { points: '480,122 520,122' },
      { points: '620,122 670,122' },
      { points: '780,190 780,212 570,212 570,154', label: 'COMMIT, then ack', at: [675, 206] },
      { points: '305,152 305,240' },
      { points: '350,270 390,270' },
      { points: '500,270 540,270' },
      { points: '820,190 820,240' },
    ],
  )
}

/** Every state of an event in an outbox. */
export function eventStates(): string {
  return picture(
    'The states of an event',
    860,
    330,
    [
      { x: 150, y: 20, width: 120, lines: ['ready'] },
      { x: 150, y: 100, width: 120, lines: ['held'] },
      { x: 150, y: 180, width: 120, lines: ['scheduled'] },
      { x: 150, y: 260, width: 120, lines: ['retrying'] },
      { x: 430, y: 100, width: 150, height: 60, lines: ['in flight', 'leased, under a lease'] },
      { x: 710, y: 40, width: 130, lines: ['published'], kind: 'end' },
      { x: 710, y: 180, width: 130, lines: ['dead'], kind: 'bad' },
    ],
    [
      { points: '20,42 150,42', label: 'enqueue', at: [80, 34] },
      { points: '20,202 150,202', label: 'with availableAt', at: [80, 194] },
      { points: '210,64 210,100', label: 'an earlier one of its key waits', at: [318, 86] },
      { points: '270,42 470,42 470,100' },
      { points: '270,122 430,122', label: 'its key is open' },
      { points: '270,202 450,202 450,160', label: 'due', at: [360, 196] },
      { points: '510,160 510,275 270,275', label: 'failed: an attempt is spent', at: [400, 268] },
      { points: '270,290 560,290 560,160', label: 'due', at: [420, 306] },
      { points: '580,115 640,115 640,62 710,62', label: 'done', at: [675, 54] },
      { points: '580,145 640,145 640,195 710,195', label: 'rejected, or the last attempt', at: [738, 172] },
      { points: '775,224 775,316 210,316 210,304', label: 're-armed by a person', at: [690, 310] },
    ],
  )
}

/** Every state of a saga. `held` is a flag beside running and compensating. */
export function sagaStates(): string {
  return picture(
    'The states of a saga',
    820,
    290,
    [
      { x: 120, y: 30, width: 180, height: 56, lines: ['running', 'or held, for a person'] },
      { x: 120, y: 150, width: 180, height: 96, lines: ['compensating', 'or held, for a person'] },
      { x: 620, y: 30, width: 150, lines: ['completed'], kind: 'end' },
      { x: 620, y: 120, width: 150, lines: ['compensated'], kind: 'end' },
      { x: 620, y: 210, width: 150, lines: ['failed'], kind: 'bad' },
    ],
    [
      { points: '20,58 120,58', label: 'start', at: [68, 50] },
      { points: '300,48 620,48', label: 'the last step is done' },
      { points: '180,86 180,150', label: 'refused, gave up, cancelled', at: [272, 126] },
      { points: '300,165 460,165 460,135 620,135', label: 'all is undone', at: [545, 129] },
      { points: '620,155 500,155 500,195 300,195', label: 'a late success', at: [400, 190] },
      { points: '300,225 620,225', label: 'an undo gave up', at: [430, 220] },
      { points: '620,245 590,245 590,272 210,272 210,246', label: 'retry, compensate, a late success', at: [400, 266] },
    ],
  )
}
