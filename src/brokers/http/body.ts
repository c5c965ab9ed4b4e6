import type { Clock } from '../../core/index.ts'

/** Why a body was not read to its end. */
export type Unread = 'too large' | 'too slow' | 'broken'

/**
 * The whole body, unless it is larger than `most` bytes or takes longer than `timeout`. What Content-Length says spares
 * the reading of what is too large; what counts is what comes.
 */
export async function readBody(
  request: Request,
  most: number,
  timeout: number,
  clock: Clock,
): Promise<Uint8Array | Unread> {
  if (Number(request.headers.get('content-length') ?? 0) > most) return 'too large'
  if (request.body === null) return new Uint8Array()
  const reader = (request.body as ReadableStream<Uint8Array>).getReader()
  const over = new AbortController()
  const late = clock.sleep(timeout, over.signal).then(() => 'too slow' as const)
  try {
    return await Promise.race([late, readAll(reader, most)])
  } catch {
    return 'broken'
  } finally {
    over.abort()
    // Whoever still sends is told to stop. Not waited for: it may never answer.
    reader.cancel().catch(() => {})
  }
}

async function readAll(reader: ReadableStreamDefaultReader<Uint8Array>, most: number): Promise<Uint8Array | Unread> {
  const chunks: Uint8Array[] = []
  let size = 0
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, size)
    size += value.byteLength
    if (size > most) return 'too large'
    chunks.push(value)
  }
}
