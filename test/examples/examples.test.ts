import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, describe, expect, test } from 'vitest'
import { build } from '../readme/support.ts'
import { freshDatabase, service, without } from '../support/services.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const examples = readdirSync(join(root, 'examples')).filter((name) => /^[0-9].*\.ts$/.test(name))

/** Examples that need a server, and the variable in which they look for its URL. */
const servers: Record<string, { server: string; variable: string }> = {
  '04-rabbitmq.ts': { server: 'rabbitmq', variable: 'RABBITMQ_URL' },
  '05-nats.ts': { server: 'nats', variable: 'NATS_URL' },
  '06-kafka.ts': { server: 'kafka', variable: 'KAFKA_URL' },
  '08-redis.ts': { server: 'redis', variable: 'REDIS_URL' },
}

/** Starting a PostgreSQL inside a process takes seconds, on a busy machine many. */
const SLOW = 170_000

interface Finished {
  code: number | string | null
  output: string
  errors: string
}

function node(args: readonly string[], more: Record<string, string> = {}): Promise<Finished> {
  return new Promise((resolve) => {
    // A terminal's settings must not colour what is compared, nor a server of one's own be written to.
    const { FORCE_COLOR, DATABASE_URL, ...rest } = process.env
    const env = { ...rest, NO_COLOR: '1', ...more }
    execFile(process.execPath, args, { cwd: root, env, timeout: SLOW }, (error, output, stderr) => {
      // What goes wrong on purpose is told there, since the examples give no logger.
      const errors = stderr.replace(/^waybill:.*\n/gm, '')
      resolve({ code: error === null ? 0 : (error.code ?? error.signal ?? 1), output, errors })
    })
  })
}

// They import the package by its name, as users do, and so what was built.
beforeAll(build, SLOW)

describe('examples', () => {
  test('there are some', () => expect(examples).toContain('01-router.ts'))

  const embedded = examples.filter((name) => name !== '03-postgres-js.ts' && !(name in servers))
  test.each(embedded)('%s prints what its .out file says', { timeout: SLOW }, async (name) => {
    expect(await example(name)).toEqual({ code: 0, output: expected(name), errors: '' })
  })

  const onServer = test.skipIf(without('postgres'))
  onServer.each(examples.filter((name) => name.includes('postgres')))('%s does so on a server', async (name) => {
    const database = await freshDatabase()
    try {
      expect(await example(name, { DATABASE_URL: database.url })).toEqual({
        code: 0,
        output: expected(name),
        errors: '',
      })
    } finally {
      await database.drop()
    }
  })

  for (const [name, { server, variable }] of Object.entries(servers)) {
    test.skipIf(without(server))(
      `${name} prints what its .out file says, on ${server}`,
      { timeout: SLOW },
      async () => {
        const env = { [variable]: service(server).url }
        expect(await example(name, env)).toEqual({ code: 0, output: expected(name), errors: '' })
      },
    )
  }

  const example = (name: string, env = {}) => node(['--import', 'tsx', join('examples', name)], env)
  const expected = (name: string) => readFileSync(join(root, 'examples', name.replace(/\.ts$/, '.out')), 'utf8')
})

describe('demo', () => {
  const demo = (...args: string[]) => node(['--import', 'tsx', 'examples/demo.ts', ...args])
  /** From the summary, which is aligned. */
  const counted = (output: string, name: string) =>
    Number(new RegExp(`^  ${name} {2,}([\\d,]+)`, 'm').exec(output)?.[1])

  test('the shop is killed, billing is away: every event arrives, once in effect', { timeout: SLOW }, async () => {
    const { code, output, errors } = await demo('--once', '--orders', '60')
    expect(errors).toBe('')
    for (const part of ['SIGKILL', 'the shop is back on the same folder', 'the relay pauses', 'goes on by itself']) {
      expect(output).toContain(part)
    }
    // Six of sixty are rolled back.
    for (const name of ['orders', 'events', 'invoices']) expect([name, counted(output, name)]).toEqual([name, 54])
    expect(counted(output, 'duplicates')).toBeGreaterThan(0)
    expect(counted(output, 'delivered')).toBe(54 + counted(output, 'duplicates'))
    for (const name of ['lost', 'doubled', 'invented', 'disordered']) expect(counted(output, name)).toBe(0)
    expect(code).toBe(0)
  })

  test('a loss is noticed, and so is what the inbox would have skipped', { timeout: SLOW }, async () => {
    const { code, output } = await demo('--once', '--orders', '30', '--lose', '3', '--without-inbox')
    expect(counted(output, 'lost')).toBe(3)
    expect(counted(output, 'doubled')).toBe(counted(output, 'duplicates'))
    expect(counted(output, 'doubled')).toBeGreaterThan(0)
    expect(code).toBe(1)
  })

  test.each([
    [['--onec'], "Unknown option '--onec'"],
    [['--orders', 'many'], '--orders takes a whole number of at least 20, not "many"'],
  ])('%j is refused', async (args, text) => {
    const { code, errors } = await demo(...args)
    expect(errors).toContain(text)
    expect(errors).toContain('usage: npm run demo')
    expect(code).toBe(2)
  })
})
