import { afterEach, expect, test } from 'vitest'
import { type RunningScript, runScript } from '../../src/testing/index.ts'
import { outboxOn, Placed } from '../postgres/support.ts'
import { bundled } from '../support/bundled.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

interface Process extends RunningScript {
  /** One number of its last scrape; `undefined`: it does not tell. */
  scrape(): Promise<(metric: string) => number | undefined>
}

async function processOf(name: string, database: string, reader: string): Promise<Process> {
  const env = { DATABASE: database, NAME: name, READER: reader }
  const script = runScript({ script: bundled(new URL('./scraped/child.ts', import.meta.url)), env, timeout: 100_000 })
  ends.push(async () => {
    script.kill('SIGKILL')
    await script.finished.catch(() => {})
  })
  const port = /\d+/.exec(await script.line('port'))![0]
  return Object.assign(script, {
    async scrape() {
      // As Prometheus does with one that hangs: its numbers are absent.
      const given = { signal: AbortSignal.timeout(1500) }
      const text = await fetch(`http://127.0.0.1:${port}`, given).then(
        (response) => response.text(),
        () => '',
      )
      return (metric: string) => {
        const line = new RegExp(`^${metric}\\{table="outbox"\\} (\\S+)$`, 'm').exec(text)
        return line === null ? undefined : Number(line[1])
      }
    },
  })
}

describeWith(['postgres'], 'gauges of two processes', () => {
  test.each(['owner', 'lease'])(
    '%s: their sum is right at every scrape, whoever hangs, wakes or dies',
    async (reader) => {
      const t = await outboxOn()
      ends.push(() => t.end())
      await t.enqueue(
        [1, 2, 3].map((n) => Placed({ n })),
        { availableAt: new Date(Date.now() + 3_600_000) },
      )
      const sums = new Set<number>()
      const scrapes = async (processes: readonly Process[]) => {
        const told = await Promise.all(processes.map((one) => one.scrape()))
        const numbers = told.map((of) => of('outbox_pending_count'))
        sums.add(numbers.reduce<number>((sum, number) => sum + (number ?? 0), 0))
        return { numbers, leads: told.map((of) => of('outbox_leader')) }
      }
      const told = (processes: readonly Process[], numbers: readonly (number | undefined)[]) =>
        eventually(
          `they tell ${numbers}`,
          async () => {
            const seen = await scrapes(processes)
            const same = numbers.every((number, i) => seen.numbers[i] === number)
            return same && seen.leads.filter((leads) => leads === 1).length === 1
          },
          { limit: 40_000, every: 50, seen: () => [...sums] },
        )
      const first = await processOf('a', t.database.url, reader)
      await told([first], [3])
      const second = await processOf('b', t.database.url, reader)
      const both = [first, second]
      await told(both, [3, undefined])
      first.pause()
      await told(both, [undefined, 3])
      // Wakes, and may think for a moment that it still leads: it must know better before it answers.
      first.resume()
      for (let scrape = 0; scrape < 10; scrape++) await scrapes(both)
      await eventually('one of them tells', async () => {
        const { numbers } = await scrapes(both)
        return numbers.filter((number) => number === 3).length === 1
      })
      const { numbers } = await scrapes(both)
      const teller = numbers[0] === 3 ? first : second
      teller.kill('SIGKILL')
      await told([teller === first ? second : first], [3])
      expect([...sums].filter((sum) => sum > 3)).toEqual([])
    },
    110_000,
  )
})
