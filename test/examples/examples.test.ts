import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, describe, expect, test } from 'vitest'

const root = fileURLToPath(new URL('../..', import.meta.url))
const examples = readdirSync(join(root, 'examples')).filter((name) => /^[0-9].*\.ts$/.test(name))

interface Finished {
  code: number | string | null
  output: string
  errors: string
}

function node(...args: string[]): Promise<Finished> {
  return new Promise((resolve) => {
    // A terminal's settings must not colour what is compared.
    const { FORCE_COLOR, ...rest } = process.env
    const env = { ...rest, NO_COLOR: '1' }
    execFile(process.execPath, args, { cwd: root, env, timeout: 60_000 }, (error, output, errors) => {
      resolve({ code: error === null ? 0 : (error.code ?? error.signal ?? 1), output, errors })
    })
  })
}

// They import the package by its name, as users do, and so what was built.
beforeAll(async () => {
  await node('node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json')
}, 120_000)

describe('examples', () => {
  test('there are some', () => expect(examples).toContain('01-router.ts'))

  test.each(examples)('%s prints what its .out file says', async (name) => {
    const { code, output, errors } = await node('--import', 'tsx', join('examples', name))
    expect(errors).toBe('')
    expect(output).toBe(readFileSync(join(root, 'examples', name.replace(/\.ts$/, '.out')), 'utf8'))
    expect(code).toBe(0)
  })
})

test('the first sample of the README prints what stands below it', async () => {
  const [, code, output] = /```ts\n(.*?)```\n\n```\n(.*?)```/s.exec(readFileSync(join(root, 'README.md'), 'utf8'))!
  // Inside the repository, so that the package is found by its own name.
  mkdirSync(join(root, '.cache'), { recursive: true })
  const folder = mkdtempSync(join(root, '.cache', 'readme-'))
  try {
    writeFileSync(join(folder, 'first.ts'), code!)
    expect(await node('--import', 'tsx', join(folder, 'first.ts'))).toEqual({ code: 0, output, errors: '' })
  } finally {
    rmSync(folder, { recursive: true })
  }
})

describe('demo', () => {
  const demo = (...args: string[]) => node('--import', 'tsx', 'examples/demo.ts', ...args)
  /** From the summary, which is aligned. */
  const counted = (output: string, name: string) =>
    Number(new RegExp(`^  ${name} {2,}([\\d,]+)`, 'm').exec(output)?.[1])

  test('one round: an outage, retries, poison, duplicates, and nothing lost', async () => {
    const { code, output } = await demo('--once', '--orders', '300')
    expect(output).toContain('relay.outbox pauses')
    expect(counted(output, 'sent')).toBe(300)
    expect(counted(output, 'dead')).toBe(3)
    expect(counted(output, 'handled')).toBe(297)
    expect(counted(output, 'retried')).toBeGreaterThanOrEqual(41)
    expect(counted(output, 'duplicates')).toBeGreaterThan(0)
    expect(counted(output, 'lost')).toBe(0)
    expect(code).toBe(0)
  })

  test('a loss is noticed', async () => {
    const { code, output } = await demo('--once', '--orders', '40', '--lose', '3')
    expect(counted(output, 'lost')).toBe(3)
    expect(code).toBe(1)
  })

  test.each([
    [['--onec'], "Unknown option '--onec'"],
    [['--orders', 'many'], '--orders takes a whole number of at least 1, not "many"'],
  ])('%j is refused', async (args, text) => {
    const { code, errors } = await demo(...args)
    expect(errors).toContain(text)
    expect(errors).toContain('usage: npm run demo')
    expect(code).toBe(2)
  })
})
