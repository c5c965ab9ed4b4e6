/** `npm test`: provisions real servers, runs vitest against them, says what was not exercised, ends the servers. */
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { MARK, record } from './services/process.ts'
import { provision } from './services/provision.ts'
import { openRun } from './services/run.ts'
import { stopAll } from './services/server.ts'
import type { Handover, Server } from './services/types.ts'
import { parse, vitestArguments } from './testing/arguments.ts'
import { summary } from './testing/summary.ts'

const USAGE = `npm test -- [options] [files…]: provisions real servers, runs vitest against them, says what was not exercised

  --tier test|full|torture   how long and how hard (default test); also npm run test:full, npm run torture -- NAME
  --with rabbitmq            only these servers
  --without kafka,redis6     go without these servers
  --rest                     with tier full: only what it adds over tier test
  anything else              is given to vitest; for tier torture the first word is a test name`

const home = fileURLToPath(new URL('..', import.meta.url))

async function main(): Promise<number> {
  const given = process.argv.slice(2)
  if (given.includes('--help') || given.includes('-h')) {
    console.log(USAGE)
    return 0
  }
  const options = parse(given)
  const files = await vitestArguments(options, home)
  if (!files) {
    console.log(`tier ${options.tier} adds no test files\n0 passed, 0 failed`)
    return 0
  }
  const run = await openRun()
  let servers: Server[] = []
  let interrupted = false
  try {
    servers = await provision(options.services, { run: run.dir, say: (text) => console.log(`· ${text}`) })
    const handover: Handover = { run: run.dir, servers, without: options.without }
    const report = join(run.dir, 'report.json')
    const code = await vitest(files, {
      WAYBILL_TIER: options.tier,
      WAYBILL_SERVICES: JSON.stringify(handover),
      WAYBILL_REPORT: report,
      [MARK]: run.dir,
    })
    const { text, failed } = await summary(report, options)
    console.log(text)
    return code === 0 && failed === 0 ? 0 : code || 1
  } finally {
    await Promise.all(servers.map((server) => stopAll(server).catch((error) => console.error(error.message))))
    const left = await run.close()
    // When provisioning failed, what had been started by then is not a surprise.
    if (left.length && servers.length)
      console.error(`ended ${left.length} processes that were left behind: ${left.join(', ')}`)
    if (interrupted) process.exitCode = 130
  }

  function vitest(args: string[], env: Record<string, string>): Promise<number> {
    const bin = join(home, 'node_modules', 'vitest', 'vitest.mjs')
    const child = spawn(process.execPath, [bin, 'run', ...args], {
      cwd: home,
      env: { ...process.env, ...env },
      stdio: 'inherit',
    })
    // Recorded with the servers, so that it ends with them when this process is killed.
    record(join(run.dir, 'pids', 'vitest'), child.pid!, 'vitest', 'SIGTERM')
    const pass = (signal: NodeJS.Signals) => {
      interrupted = true
      child.kill(signal)
    }
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, pass)
    return new Promise((resolve, reject) => {
      child.on('error', reject)
      child.on('exit', (code) => resolve(code ?? 1))
    })
  }
}

main().then(
  (code) => {
    process.exitCode ||= code
  },
  (error) => {
    console.error(`\n${error.message}`)
    console.log('0 passed, 1 failed')
    process.exitCode = 1
  },
)
