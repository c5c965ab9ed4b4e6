import { expect, test } from 'vitest'
import { hasSentence, nameProblems, type PublicName, unexplained } from '../../scripts/check/names.ts'

const event: PublicName = { subpath: 'waybill', name: 'event', kind: 'value', documented: true }
const clock: PublicName = { subpath: 'waybill', name: 'Clock', kind: 'type', documented: true }
const LIST = 'waybill  Clock  (type)\nwaybill  event\n'

test('names that stand in the list are fine', () => {
  expect(nameProblems([event, clock], LIST)).toEqual([])
})

test('a name that came, went or became a type is found, with what to do', () => {
  const advice = 'write the list anew with: npx tsx scripts/check/names.ts'
  expect(nameProblems([event, clock, { ...event, name: 'added' }], LIST)).toEqual(['new: waybill  added', advice])
  expect(nameProblems([event], LIST)).toEqual(['gone: waybill  Clock  (type)', advice])
  expect(nameProblems([{ ...event, kind: 'type' }, clock], LIST)).toEqual([
    'gone: waybill  event',
    'new: waybill  event  (type)',
    advice,
  ])
})

test('a name without a doc comment is found', () => {
  expect(nameProblems([{ ...event, documented: false }, clock], LIST)).toEqual([
    'waybill event has no doc comment; say in a sentence what it is',
  ])
})

test('a function or a constant that is on no page is found, and a class that users make; a type only at the root', () => {
  const names: PublicName[] = [
    event,
    clock,
    { ...event, name: 'Relay', kind: 'class' },
    { ...event, subpath: 'waybill/kafka', name: 'KafkaBroker', kind: 'class' },
    { ...clock, subpath: 'waybill/kafka', name: 'KafkaOptions' },
  ]
  expect(unexplained(names, ['Make it with `event(…)`.', 'Start a `Relay`.', 'It takes a `Clock`.'])).toEqual([])
  expect(unexplained(names, ['All events and relays.'])).toEqual([
    'waybill event is on no page; say in docs/ when one needs it',
    'waybill Clock is on no page; say in docs/ when one needs it',
    'waybill Relay is on no page; say in docs/ when one needs it',
  ])
})

test.each([
  ['A fact with a name, a version and data.', true],
  ['A suite is data; any test runner will do:\n\n    for (const one of suite) test(one.name, one.run)', true],
  ['', false],
  ['Clock', false],
  ['The clock', false],
  ["`telemetry['flow.paused'].subscribe(…)`", false],
])('%j is a sentence: %s', (comment, is) => {
  expect(hasSentence(comment)).toBe(is)
})
