import { appendFileSync, existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { OK, type Publisher, type RawMessage } from '../../../src/index.ts'

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

  constructor(path = join(mkdtempSync(join(tmpdir(), 'waybill-faults-')), 'journal')) {
    this.path = path
  }

  write(...lines: Omit<Line, 'at'>[]): void {
    if (lines.length === 0) return
    const at = Date.now()
    appendFileSync(this.path, `${lines.map((line) => JSON.stringify({ ...line, at })).join('\n')}\n`)
  }

  read(): Line[] {
    if (!existsSync(this.path)) return []
    const lines = readFileSync(this.path, 'utf8').split('\n').filter(Boolean)
    return lines.map((line) => JSON.parse(line) as Line)
  }

  count(what: Line['what'], relay?: string): number {
    return this.read().filter((line) => line.what === what && (relay === undefined || line.relay === relay)).length
  }

  /** How many different messages have arrived. */
  arrived(): number {
    return new Set(this.read().flatMap((line) => (line.what === 'ok' ? [line.id] : []))).size
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
