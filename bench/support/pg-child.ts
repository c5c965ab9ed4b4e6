import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { npmPackage } from '../../scripts/services/npm.ts'

/** Peers of the relay need 22, so all contestants there get it, ours too; elsewhere it is the one in long-term support. */
const NODES = { relay: '22.23.3', brokers: '24.21.0' }

/** The Node that contestants run on, as npm carries it. */
export async function contestantNode(
  of: keyof typeof NODES,
  say: (text: string) => void,
): Promise<{ version: string; path: string }> {
  const version = NODES[of]
  const platform = process.platform === 'win32' ? 'win' : process.platform
  const folder = await npmPackage(`node-${platform}-${process.arch}`, version, say)
  return { version, path: `${folder}/bin/node` }
}

/** A contestant in a process of its own. It writes one JSON object per line. */
export class Child {
  readonly #process: ChildProcess
  readonly #lines: AsyncIterator<string>
  readonly #ended: Promise<number | null>

  constructor(node: string, file: URL, options: object, flags: readonly string[] = []) {
    // Where to put a CPU profile of each contestant; it costs all of them alike, and the figures are then worth less.
    const profiles = process.env['WAYBILL_BENCH_PROFILES']
    const profile = profiles === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${profiles}`]
    const args = [
      '--disable-warning=ExperimentalWarning',
      ...profile,
      ...flags,
      fileURLToPath(file),
      JSON.stringify(options),
    ]
    this.#process = spawn(node, args, { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#lines = createInterface({ input: this.#process.stdout! })[Symbol.asyncIterator]()
    this.#ended = new Promise((resolve) => this.#process.once('exit', resolve))
  }

  get pid(): number {
    return this.#process.pid!
  }

  async next<T>(): Promise<T> {
    const { value, done } = await this.#lines.next()
    if (done) throw new Error(`${this.#process.spawnargs.join(' ')} ended with ${await this.#ended}`)
    return JSON.parse(value) as T
  }

  /** Tells it to go on. */
  send(word: string): void {
    this.#process.stdin!.write(`${word}\n`)
  }

  async end(): Promise<void> {
    this.#process.stdin!.end()
    const timer = setTimeout(() => this.#process.kill('SIGKILL'), 15_000)
    await this.#ended
    clearTimeout(timer)
  }
}
