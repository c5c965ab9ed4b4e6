import { expect, test } from 'vitest'
import { samplesOf, wrongIn } from '../../scripts/check/samples.ts'

const sample = (code: string) => samplesOf({ path: 'docs/some.md', text: `# Some\n\n\`\`\`ts\n${code}\n\`\`\`\n` })

// One program for all: each costs a second or more.
test('a sample that does not fit is found, on its line of the page', { timeout: 60_000 }, () => {
  const right = sample("import { event } from 'waybill'\n\nconst made = event<{ n: number }>('a')({ n: 1 })")
  const wrong = sample("import { event } from 'waybill'\n\nconst made = event<{ n: number }>('a')({ m: 1 })")
  const named = sample("await db.outbox.enqueue(client, OrderPlaced({ orderId: 'A-1', total: 30 }))")
  const files = [right, wrong, named].flatMap(([one], at) => [
    { ...one!, file: one!.file.replace('-1.mts', `-${at}.mts`) },
  ])
  const problems = wrongIn(files)
  expect(problems).toHaveLength(1)
  expect(problems[0]).toMatch(/^docs\/some\.md:6 {2}TS\d+: .*'m' does not exist/)
})
