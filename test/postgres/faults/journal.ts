import { appendFileSync, closeSync, existsSync, fstatSync, mkdtempSync, openSync, readSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { OK } from '../../../src/adapter.ts'
import type { Publisher, RawMessage } from '../../../src/index.ts'

/**
 * One thing that happened at the destination, or to a relay. `start` and what ended it (`ok`, `failed`, `down`) are of
 * one message; the others are of the relay as a whole. `at` is the wall clock, which the server on this machine shares.
 */
export interface Line {
  readonly what: 'start' | 'ok' | 'failed' | 'down' | 'died' | 'opened' | 'lost' | 'settled' | 'dead' | 'paused'
  readonly relay: string
  readonly at: number
  readonly id?: string
  readonly key?: string | undefined
  readonly n?: number
  readonly stale?: number
}

/**
 * What happened, written by many processes into one file. Each write is one append, so the order of the lines is the
 * order of events across processes, and a killed process has written all it did.
 */
export class Journal {
  readonly path: string
  readonly #lines: Line[] = []
  readonly #counts = new Map<string, number>()
  readonly #arrived = new Set<string>()
  #place = 0

  constructor(path = join(mkdtempSync(join(tmpdir(), 'waybill-faults-')), 'journal')) {
    this.path = path
  }

  remove(): void {
    rmSync(dirname(this.path), { recursive: true, force: true })
  }

  write(...lines: Omit<Line, 'at'>[]): void {
    if (lines.length === 0) return
    const at = Date.now()
    appendFileSync(this.path, `${lines.map((line) => JSON.stringify({ ...line, at })).join('\n')}\n`)
  }

  /** All lines so far. Only what was added since is read: tests ask again and again. */
  read(): readonly Line[] {
    if (!existsSync(this.path)) return this.#lines
    const file = openSync(this.path, 'r')
    const buffer = Buffer.alloc(fstatSync(file).size - this.#place)
    const length = readSync(file, buffer, 0, buffer.length, this.#place)
    closeSync(file)
    const end = buffer.subarray(0, length).lastIndexOf('\n') + 1
    this.#place += end
    for (const text of buffer.toString('utf8', 0, end).split('\n')) if (text !== '') this.#add(JSON.parse(text))
    return this.#lines
  }

  #add(line: Line): void {
    this.#lines.push(line)
    for (const name of [line.what, `${line.what} ${line.relay}`]) {
      this.#counts.set(name, (this.#counts.get(name) ?? 0) + 1)
    }
    if (line.what === 'ok') this.#arrived.add(line.id!)
  }

  count(what: Line['what'], relay?: string): number {
    this.read()
    return this.#counts.get(relay === undefined ? what : `${what} ${relay}`) ?? 0
  }

  /** How many different messages have arrived. */
  arrived(): number {
    this.read()
    return this.#arrived.size
  }
}

export interface JournalPublisherOptions {
  /** Its name. */
  readonly relay: string
  /** How long each call takes, in milliseconds. */
  readonly delay?: number | undefined
  readonly inner?: Publisher | undefined
  /** Called with what is out, when it has been written down. */
  readonly during?: ((messages: readonly RawMessage[]) => unknown) | undefined
}

/** A destination that writes down when each message goes out and what became of it. */
export function journalPublisher(journal: Journal, options: JournalPublisherOptions): Publisher {
  const { relay, delay = 0, inner, during } = options
  const line = (what: Line['what'], message: RawMessage) => ({ what, relay, ...about(message) })
  return {
    name: 'journal',
    features: {},
    async publish(messages, signal) {
      journal.write(...messages.map((message) => line('start', message)))
      try {
        await during?.(messages)
        if (delay > 0) await new Promise((resolve) => setTimeout(resolve, delay))
        const outcomes = inner === undefined ? messages.map(() => OK) : await inner.publish(messages, signal)
        const kinds = { ok: 'ok', failed: 'failed', rejected: 'failed', down: 'down' } as const
        journal.write(...messages.map((message, i) => line(kinds[outcomes[i]!.kind], message)))
        return outcomes
      } catch (error) {
        journal.write(...messages.map((message) => line('down', message)))
        throw error
      }
    },
  }
}

function about(message: RawMessage): { id: string; key: string | undefined; n: number } {
  return { id: message.id, key: message.key, n: JSON.parse(message.data as string).n }
}
