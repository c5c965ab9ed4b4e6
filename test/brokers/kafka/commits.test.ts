import { expect, test } from 'vitest'
import { OffsetCommits } from '../../../src/brokers/kafka/commits.ts'
import { FakeClock } from '../../../src/testing/index.ts'

function counted() {
  const clock = new FakeClock()
  const asked = { commits: 0, fails: false }
  const commits = new OffsetCommits(clock, async () => {
    asked.commits++
    if (asked.fails) throw new Error('no answer')
  })
  return { clock, asked, commits }
}

test('the first is committed at once, those that follow within 50 ms together', async () => {
  const { clock, asked, commits } = counted()
  await commits.done(1)
  expect(asked.commits).toBe(1)
  for (let i = 0; i < 20; i++) await commits.done(10)
  expect(asked.commits).toBe(1)
  await clock.advance(50)
  expect(asked.commits).toBe(2)
  await clock.advance(500)
  expect(asked.commits).toBe(2)
})

test('no more than 1000 wait, however soon they were done', async () => {
  const { asked, commits } = counted()
  await commits.done(1)
  for (let i = 0; i < 30; i++) await commits.done(100)
  expect(asked.commits).toBe(4)
})

test('while one is on its way work goes on, until it is late', async () => {
  const clock = new FakeClock()
  const answers: (() => void)[] = []
  const commits = new OffsetCommits(clock, () => new Promise((resolve) => void answers.push(resolve)))
  const first = commits.done(1)
  await clock.settle()
  answers.shift()!()
  await first
  await commits.done(1000)
  await clock.settle()
  expect(answers).toHaveLength(1)
  // As many as may be: there is one at a time.
  for (let i = 0; i < 5; i++) await commits.done(1000)
  await clock.advance(49)
  expect(answers).toHaveLength(1)
  await clock.advance(1)
  let waited = true
  const late = commits.done(1).then(() => {
    waited = false
  })
  await clock.settle()
  expect([answers.length, waited]).toEqual([1, true])
  answers.shift()!()
  await clock.settle()
  // What had gathered, by whoever asked for it first.
  expect([answers.length, waited]).toEqual([1, true])
  while (waited) {
    answers.shift()?.()
    await clock.settle()
  }
  await late
})

test('what failed is told to the next that settles, which tries it again', async () => {
  const { clock, asked, commits } = counted()
  await commits.done(1)
  await commits.done(1)
  asked.fails = true
  await clock.advance(50)
  expect(asked.commits).toBe(2)
  await expect(commits.done(1)).rejects.toThrow('no answer')
  expect(asked.commits).toBe(3)
  asked.fails = false
  await commits.done(1)
  expect(asked.commits).toBe(4)
  await clock.advance(5000)
  expect(asked.commits).toBe(4)
})

test('one goes out after the other, whoever asks, and the end waits for the last', async () => {
  const clock = new FakeClock()
  const said: string[] = []
  let answer = () => {}
  const commits = new OffsetCommits(clock, () => {
    said.push('asked')
    return new Promise((resolve) => {
      answer = () => resolve(void said.push('answered'))
    })
  })
  const both = [commits.now(), commits.now()]
  const ended = commits.end().then(() => said.push('ended'))
  for (const order of [['asked'], ['asked', 'answered', 'asked']]) {
    await clock.settle()
    expect(said).toEqual(order)
    answer()
  }
  await Promise.all([...both, ended])
  expect(said).toEqual(['asked', 'answered', 'asked', 'answered', 'ended'])
})

test('nothing is committed by itself after the end', async () => {
  const { clock, asked, commits } = counted()
  await commits.done(1)
  await commits.done(1)
  await commits.end()
  await clock.advance(5000)
  expect(asked.commits).toBe(1)
})
