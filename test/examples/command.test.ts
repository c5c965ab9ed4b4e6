import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'

const root = fileURLToPath(new URL('../..', import.meta.url))
const names = readdirSync(join(root, 'examples')).flatMap((name) => /^(\d.*)\.ts$/.exec(name)?.[1] ?? [])

/** Building the package and starting it takes a while on a busy machine. */
const SLOW = 300_000

/** The command as a reader of the README types it. Its servers would be named on stderr. */
function npmRunExample(...args: string[]): Promise<{ code: number | string; out: string; errors: string }> {
  const { FORCE_COLOR, DATABASE_URL, ...rest } = process.env
  const env = { ...rest, NO_COLOR: '1', npm_config_loglevel: 'silent' }
  return new Promise((resolve) => {
    const words = ['run', '--silent', 'example', '--', ...args]
    execFile('npm', words, { cwd: root, env, timeout: SLOW }, (error, out, errors) => {
      resolve({ code: error === null ? 0 : (error.code ?? 1), out, errors: errors.replace(/^npm warn.*\n/gm, '') })
    })
  })
}

function expectAll(out: string): void {
  for (const name of [...names, 'order-service']) expect(out).toMatch(new RegExp(`^${name} +\\S.*\\.`, 'm'))
}

test('npm run example lists every example with what it shows and needs', { timeout: SLOW }, async () => {
  const { code, out, errors } = await npmRunExample()
  expect([code, errors]).toEqual([0, ''])
  expectAll(out)
  expect(out).toMatch(/^04-rabbitmq .*\(needs rabbitmq, started for you\)$/m)
  expect(out).not.toMatch(/^01-router .*needs/m)
  expect(out).toContain('npm run example -- 02')
})

test('one that needs no server is run by its number, and starts none', { timeout: SLOW }, async () => {
  const { code, out, errors } = await npmRunExample('01')
  expect(out).toBe(readFileSync(join(root, 'examples', '01-router.out'), 'utf8'))
  // A server that is started is told of with a dot in front.
  expect(errors).not.toMatch(/^·/m)
  expect(code).toBe(0)
})

test.each([
  [['postgress'], "unknown example 'postgress'; choose one of these:"],
  [['postgres'], "'postgres' fits several examples: 02-postgres-outbox, 03-postgres-js"],
  [['01', '02'], 'one example at a time; choose one of these:'],
])('%j is answered with what there is', { timeout: SLOW }, async (args, text) => {
  const { code, out, errors } = await npmRunExample(...args)
  expect(errors).toContain(text)
  expectAll(out)
  expect(code).toBe(2)
})
