/** The order service as its users start it, with a database, an exchange and ports of its own; to kill, stop and audit. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { freePort } from '../../../scripts/services/ports.ts'
import { dropQueues, fresh, plainly } from '../../brokers/rabbitmq/support.ts'
import { type FreshDatabase, freshDatabase, service } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))
export const ROLES = ['api', 'orders', 'inventory', 'billing'] as const
export type Role = (typeof ROLES)[number]
const QUEUES = ['inventory', 'billing', 'saga-replies']

export interface Line {
  readonly name: string
  readonly msg: string
  readonly level: number
  readonly traceId?: string
  readonly worker?: string
}

export class Shop {
  readonly pool: pg.Pool
  /** What its processes logged. */
  readonly lines: Line[] = []
  /** Whatever else came out of them: crashes, warnings. */
  readonly other: string[] = []
  readonly #database: FreshDatabase
  readonly #exchange = fresh('shop')
  readonly #ports: readonly number[]
  readonly #pids = new Map<string, number>()
  #starter: ChildProcess | undefined

  private constructor(database: FreshDatabase, ports: readonly number[]) {
    this.#database = database
    this.#ports = ports
    this.pool = new pg.Pool({ connectionString: database.url, max: 4 })
    this.pool.on('error', () => {})
  }

  static async open(env: Record<string, string> = {}): Promise<Shop> {
    const shop = new Shop(await freshDatabase(), await Promise.all(ROLES.map(() => freePort())))
    await shop.start(env)
    return shop
  }

  url(role: Role): string {
    return `http://127.0.0.1:${this.#ports[ROLES.indexOf(role)]}`
  }

  async start(more: Record<string, string> = {}): Promise<void> {
    const env = {
      ...process.env,
      DATABASE_URL: this.#database.url,
      RABBITMQ_URL: service('rabbitmq').url,
      EXCHANGE: this.#exchange,
      PORTS: this.#ports.join(','),
      LEASE: '3s',
      ...more,
    }
    const args = ['--import', 'tsx', 'examples/order-service/start.ts']
    const starter = spawn(process.execPath, args, { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] })
    this.#starter = starter
    for (const stream of [starter.stdout, starter.stderr])
      createInterface(stream).on('line', (line) => this.#heard(line))
    for (const role of ROLES) await this.answers(role)
  }

  #heard(line: string): void {
    const started = /^start: (\w+) is process (\d+)/.exec(line)
    if (started !== null) this.#pids.set(started[1]!, Number(started[2]))
    else if (line.startsWith('{')) this.lines.push(JSON.parse(line))
    else if (!line.startsWith('start: ')) this.other.push(line)
  }

  /** Waits until a process of this role serves. */
  async answers(role: Role): Promise<void> {
    const asked = () =>
      fetch(`${this.url(role)}/status`).then(
        ({ ok }) => ok,
        () => false,
      )
    await eventually(`${role} answers`, asked, { every: 50, seen: () => this.other.join('\n') })
  }

  /** Without warning. Resolves when the next process of this role was started. */
  async kill(role: Role): Promise<void> {
    const pid = this.#pids.get(role)!
    process.kill(pid, 'SIGKILL')
    await eventually(`${role} is started again`, () => this.#pids.get(role) !== pid)
  }

  /** As a deploy does it. Resolves with the exit code. */
  async stop(): Promise<number | null> {
    const gone = once(this.#starter!, 'exit')
    this.#starter!.kill('SIGTERM')
    const [code] = await gone
    return code
  }

  /** What became dead, in all queues. */
  async deadLetters(): Promise<number> {
    const counts = await plainly(service('rabbitmq').url, (channel) =>
      Promise.all(QUEUES.map((queue) => channel.checkQueue(`${this.#exchange}.${queue}.dead`))),
    )
    return counts.reduce((sum, { messageCount }) => sum + messageCount, 0)
  }

  async close(): Promise<void> {
    const starter = this.#starter!
    if (starter.exitCode === null && starter.signalCode === null) {
      const gone = once(starter, 'exit')
      starter.kill('SIGKILL')
      await gone
      for (const pid of this.#pids.values()) endedOrNot(() => process.kill(pid, 'SIGKILL'))
    }
    await this.pool.end()
    await this.#database.drop()
    const { url } = service('rabbitmq')
    await dropQueues(url, ...QUEUES.map((queue) => `${this.#exchange}.${queue}`))
    await plainly(url, async (channel) => {
      for (const name of [this.#exchange, `${this.#exchange}.dead`]) await channel.deleteExchange(name)
    })
  }
}

function endedOrNot(kill: () => void): void {
  try {
    kill()
  } catch {
    // It had ended.
  }
}
