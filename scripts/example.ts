/**
 * `npm run example`: the examples, one line each. `npm run example -- 04`: runs one, with a private server if it needs one
 * and its variable (such as RABBITMQ_URL) is not set.
 */
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { provision } from './services/provision.ts'
import { openRun } from './services/run.ts'
import { stopAll } from './services/server.ts'
import type { Server } from './services/types.ts'

const home = fileURLToPath(new URL('..', import.meta.url))

/** Which server an example means by its variable. */
const SERVERS: Record<string, string> = {
  DATABASE_URL: 'postgres',
  RABBITMQ_URL: 'rabbitmq',
  NATS_URL: 'nats',
  KAFKA_URL: 'kafka',
  REDIS_URL: 'redis',
}

interface Example {
  readonly name: string
  /** Below examples/. */
  readonly file: string
  /** Its first sentence. */
  readonly about: string
  /** The variables of the servers it cannot run without. */
  readonly needs: readonly string[]
}

export function examples(): readonly Example[] {
  const files = readdirSync(join(home, 'examples')).filter((name) => /^\d.*\.ts$/.test(name))
  const small = files.sort().map((file) => {
    const code = readFileSync(join(home, 'examples', file), 'utf8')
    // Example 02 has PostgreSQL inside its process, and takes a server only if there is one.
    const names = Object.keys(SERVERS).filter((name) => code.includes(`process.env['${name}']`))
    const none = code.includes('PGlite') || code.includes('support/database')
    return { name: file.slice(0, -3), file, about: firstSentence(code), needs: none ? [] : names.slice(0, 1) }
  })
  const file = join('order-service', 'start.ts')
  const about = firstSentence(readFileSync(join(home, 'examples', file), 'utf8'))
  return [...small, { name: 'order-service', file, about, needs: ['DATABASE_URL', 'RABBITMQ_URL'] }]
}

function firstSentence(code: string): string {
  const [head] = code.split('\n//\n')
  return /^.*?\.(?= |$)/.exec(head!.replaceAll(/\n?\/\/ /g, ' ').trim())?.[0] ?? ''
}

async function main([asked, more]: readonly string[]): Promise<number> {
  const all = examples()
  const chosen = asked === undefined ? [] : all.filter(({ name }) => name.includes(asked))
  if (asked === undefined || chosen.length !== 1 || more !== undefined) {
    const several = `'${asked}' fits several examples: ${chosen.map(({ name }) => name).join(', ')}`
    const wrong =
      more !== undefined ? 'one example at a time' : chosen.length > 1 ? several : `unknown example '${asked}'`
    if (asked !== undefined) console.error(`${wrong}; choose one of these:\n`)
    for (const { name, about, needs } of all) {
      const servers = needs.map((variable) => SERVERS[variable]).join(' and ')
      console.log(`${name.padEnd(20)} ${about}${servers && ` (needs ${servers}, started for you)`}`)
    }
    console.log('\nnpm run example -- 02')
    return asked === undefined ? 0 : 2
  }
  const { file, needs } = chosen[0]!
  const missing = needs.filter((variable) => !process.env[variable])
  if (missing.length === 0) return await run(file, {})
  const place = await openRun()
  let servers: Server[] = []
  try {
    const say = (text: string) => console.error(`· ${text}`)
    const names = missing.map((variable) => SERVERS[variable]!)
    servers = await provision(names, { run: place.dir, say })
    const urls = missing.map((variable, index) => {
      return [variable, servers.find(({ name }) => name === names[index])!.url] as const
    })
    return await run(file, Object.fromEntries(urls))
  } finally {
    await Promise.all(servers.map((server) => stopAll(server)))
    await place.close()
  }
}

/** They import the package by its name, and so what was built. */
async function run(file: string, env: Record<string, string>): Promise<number> {
  const built = await node(['node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json'], {})
  return built === 0 ? await node(['--import', 'tsx', join('examples', file)], env) : built
}

function node(args: readonly string[], env: Record<string, string>): Promise<number> {
  const child = spawn(process.execPath, args, { cwd: home, env: { ...process.env, ...env }, stdio: 'inherit' })
  // An example that runs until it is told to end decides when: its servers must not be gone before. Ctrl-C reaches it anyway.
  const ignore = () => {}
  const pass = () => child.kill('SIGTERM')
  process.on('SIGINT', ignore).on('SIGTERM', pass)
  return new Promise((resolve) => {
    child.on('exit', (code) => {
      process.off('SIGINT', ignore).off('SIGTERM', pass)
      resolve(code ?? 1)
    })
  })
}

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = await main(process.argv.slice(2))
