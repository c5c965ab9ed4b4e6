// The demo's services are processes of their own; it asks them things, and kills one.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'

type Commands = Record<string, (argument: unknown) => unknown>

interface Question {
  readonly id: number
  readonly command: string
  readonly argument: unknown
}

interface Answer {
  readonly id: number
  readonly value?: unknown
  readonly error?: string
}

/** One service, seen from the demo. */
export class Child {
  readonly #process: ChildProcess
  readonly #open = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>()
  readonly #ready: Promise<unknown>
  #last = 0
  #over: Error | undefined

  constructor(path: URL, args: readonly string[], onTold: (told: Record<string, unknown>) => void = () => {}) {
    this.#process = fork(path, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
    this.#ready = new Promise((resolve, reject) => {
      this.#open.set(0, { resolve, reject })
    })
    this.#ready.catch(() => {})
    this.#process.on('message', (message: Answer | { told: Record<string, unknown> }) => {
      if ('told' in message) return onTold(message.told)
      const { id, value, error } = message
      const waiting = this.#open.get(id)
      this.#open.delete(id)
      if (error === undefined) waiting?.resolve(value as never)
      else waiting?.reject(new Error(error))
    })
    this.#process.on('exit', (code, signal) => {
      this.#over = new Error(`${path.pathname.split('/').at(-1)} ended with ${signal ?? code}`)
      for (const { reject } of this.#open.values()) reject(this.#over)
      this.#open.clear()
    })
  }

  /** Resolves when it answers. */
  async ask<Value = unknown>(command: string, argument?: unknown): Promise<Value> {
    await this.#ready
    if (this.#over !== undefined) throw this.#over
    const id = ++this.#last
    const answer = new Promise<Value>((resolve, reject) => {
      this.#open.set(id, { resolve, reject })
    })
    // Between its end and the news of it nothing can be sent: the answer is then that it ended.
    this.#process.send({ id, command, argument } satisfies Question, () => {})
    return answer
  }

  /** Without warning: what it has in memory is gone. */
  async kill(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return
    const gone = once(this.#process, 'exit')
    this.#process.kill('SIGKILL')
    await gone
  }

  async stop(): Promise<void> {
    await this.ask('stop')
    await this.kill()
  }
}

/** In the service: says that it is ready, and answers. It ends with the demo. */
export function serve(commands: Commands): { tell(told: Record<string, unknown>): void } {
  const send = (message: unknown) => {
    if (process.connected) process.send!(message)
  }
  process.on('message', async ({ id, command, argument }: Question) => {
    try {
      send({ id, value: (await commands[command]!(argument)) ?? null })
    } catch (error) {
      send({ id, error: (error as Error).stack ?? String(error) })
    }
  })
  process.on('disconnect', () => process.exit(1))
  // Ctrl-C reaches every process of a terminal; the demo decides when this one ends.
  process.on('SIGINT', () => {})
  send({ id: 0, value: null } satisfies Answer)
  return { tell: (told) => send({ told }) }
}
