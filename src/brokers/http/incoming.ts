import type { Deadlines } from './deadlines.ts'

/** Why a body was not read to its end. */
export type Unread = 'too large' | 'too slow' | 'broken'

/** How large a body may be, and how long it may take. */
export interface BodyLimits {
  /** Bytes. What Content-Length says spares the reading of what is too large; what counts is what comes. */
  readonly most: number
  /** Milliseconds. */
  readonly timeout: number
  readonly deadlines: Deadlines
}

/** A request, whoever brings it: a web framework, or `node:http` itself. */
export interface Incoming {
  readonly method: string
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | undefined>>
  /** The whole body. Never rejects. */
  read(limits: BodyLimits): Promise<Uint8Array | Unread>
  /** Calls `listener` when the sender hangs up, never at once. Answers how to take that back. */
  onGone(listener: () => void): () => void
}

/** What it is answered. */
export interface Verdict {
  readonly status: number
  readonly headers?: Readonly<Record<string, string>>
  readonly text?: string
}

export const NOTHING = new Uint8Array()

export function isTooLong({ headers }: Incoming, { most }: BodyLimits): boolean {
  return Number(headers['content-length'] ?? 0) > most
}
