import type { Deadlines } from '../../core/deadlines.ts'

/** Why a body was not read to its end. `taken`: somebody else has read it before. */
export type Unread = 'too large' | 'too slow' | 'broken' | 'no room' | 'taken'

/** Bytes that all requests together may hold here. */
export class Room {
  readonly #most: number
  #taken = 0

  constructor(most: number) {
    this.#most = most
  }

  /** Takes so many more; `false`, and nothing is taken, where there is no room for them. */
  take(bytes: number): boolean {
    if (this.#taken + bytes > this.#most) return false
    this.#taken += bytes
    return true
  }

  giveBack(bytes: number): void {
    this.#taken -= bytes
  }
}

/**
 * What has come of a body. A piece costs some hundred bytes beside its own, and a stranger may send a mebibyte in pieces of
 * one byte: so every so many become one.
 */
export class Pieces {
  readonly #all: Uint8Array[] = []
  #joined = 0

  add(piece: Uint8Array): void {
    this.#all.push(piece)
    if (this.#all.length - this.#joined < MOST_PIECES) return
    this.#all.push(Buffer.concat(this.#all.splice(this.#joined)))
    this.#joined++
  }

  /** The most common body comes in one piece, and is not copied. */
  whole(): Uint8Array {
    return this.#all.length === 1 ? this.#all[0]! : Buffer.concat(this.#all)
  }
}

const MOST_PIECES = 256

/** How large a body may be, and how long it may take. */
export interface BodyLimits {
  /** Bytes. What Content-Length says spares the reading of what is too large; what counts is what comes. */
  readonly most: number
  /** Milliseconds. */
  readonly timeout: number
  readonly deadlines: Deadlines
  /** Asked before so many bytes more are kept; `false`: there is no room for them. Absent: there always is. */
  readonly room?: (bytes: number) => boolean
}

/** A request, whoever brings it: a web framework, or `node:http` itself. */
export interface Incoming {
  readonly method: string
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | undefined>>
  /** The whole body. Never rejects. */
  read(limits: BodyLimits): Promise<Uint8Array | Unread>
  /** Calls `listener` when the sender hangs up, never at once. Returns how to take that back. */
  onGone(listener: () => void): () => void
}

/** What it is answered. */
export interface Verdict {
  readonly status: number
  readonly headers?: Readonly<Record<string, string>>
  readonly text?: string
}

export function verdict(status: number, text: string, headers: Record<string, string> = {}): Verdict {
  return { status, text: `${text}\n`, headers: { 'content-type': 'text/plain; charset=utf-8', ...headers } }
}

export const NOTHING: Uint8Array = new Uint8Array()

export function isTooLong({ headers }: Incoming, { most }: BodyLimits): boolean {
  return Number(headers['content-length'] ?? 0) > most
}
