// An order service: HTTP API, saga, view, inventory and billing on PostgreSQL and RabbitMQ. Every process is started here, and
// again when it dies, as an orchestrator would do it.
//
//   npm run example -- order-service     brings the servers too
//   DATABASE_URL=… RABBITMQ_URL=… node --import tsx examples/order-service/start.ts

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

const ROLES = ['api', 'orders', 'inventory', 'billing']
const ports = (process.env['PORTS'] ?? '8080,8081,8082,8083').split(',')
const running = new Map<string, ChildProcess>()
let ending = false

function launch(role: string, env: NodeJS.ProcessEnv = {}): ChildProcess {
  const main = fileURLToPath(new URL('main.ts', import.meta.url))
  const args = ['--import', 'tsx', main, role]
  return spawn(process.execPath, args, { env: { ...process.env, ...env }, stdio: ['ignore', 'inherit', 'inherit'] })
}

/** Keeps a process of this role running. */
function keep(role: string): void {
  const PORT = ports[ROLES.indexOf(role)]
  // The API is of the release before, as in the middle of a deploy: two versions of order.status_changed are in flight.
  const child = launch(role, { PORT, ...(role === 'api' ? { RELEASE: 'old' } : {}) })
  running.set(role, child)
  console.log(`start: ${role} is process ${child.pid}, http://localhost:${PORT}`)
  child.on('exit', (code, signal) => {
    running.delete(role)
    if (ending) return
    console.log(`start: ${role} ended with ${signal ?? code}; it is started again`)
    setTimeout(() => ending || keep(role), 500)
  })
}

/** Each process stops in its own right order; between them there is none, for what was not finished waits in the tables. */
async function end(signal: NodeJS.Signals): Promise<void> {
  ending = true
  const children = [...running.values()]
  const gone = children.map((child) => once(child, 'exit'))
  // Ctrl-C has reached them already: a terminal sends it to all. A second signal would end them at once.
  if (signal === 'SIGTERM') for (const child of children) child.kill(signal)
  const codes = (await Promise.all(gone)).map(([code]) => code)
  console.log(`start: all have ended, with ${codes.join(', ')}`)
  process.exitCode = codes.every((code) => code === 0) ? 0 : 1
}

const [code] = await once(launch('migrate'), 'exit')
if (code !== 0) process.exit(1)
for (const role of ROLES) keep(role)
process.once('SIGTERM', end)
process.once('SIGINT', end)
