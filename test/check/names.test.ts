import { expect, test } from 'vitest'
import { nameProblems, type PublicName } from '../../scripts/check/names.ts'

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
