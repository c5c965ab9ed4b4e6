import { type Duration, describe, milliseconds, WaybillError } from '../../core/index.ts'
import type { RetryQueue } from './setup.ts'

/** Text that is not empty (unless `empty`), and short enough for AMQP. */
export function checkedName(where: string, name: unknown, { empty = false } = {}): string {
  if (typeof name === 'string' && (empty || name !== '') && Buffer.byteLength(name) <= 255) return name
  const text = `${where}: ${describe(name)} is not a name; give text of ${empty ? 0 : 1} to 255 bytes`
  throw new WaybillError('INVALID_OPTION', text)
}

export function checkedUrls(where: string, given: unknown): string[] {
  const urls = [given].flat()
  if (urls.length === 0) throw new WaybillError('INVALID_OPTION', `${where}: url: name at least one`)
  return urls.map((url) => {
    const parsed = typeof url === 'string' ? parse(url) : undefined
    if (parsed !== undefined && /^amqps?:$/.test(parsed.protocol) && parsed.hostname !== '') return url as string
    // Not the URL itself: it may hold a password.
    const got = parsed === undefined ? `${typeof url === 'string' ? 'text' : describe(url)}` : parsed.protocol
    const text = `${where}: url: got ${got}; give amqp://user:password@host:port/vhost, or amqps:`
    throw new WaybillError('INVALID_OPTION', text)
  })
}

function parse(url: string): URL | undefined {
  try {
    return new URL(url)
  } catch {
    return undefined
  }
}

/** With a heartbeat, so that a server that fell silent is noticed within half a minute. */
export function urlWith(url: string): string {
  const parsed = new URL(url)
  if (!parsed.searchParams.has('heartbeat')) parsed.searchParams.set('heartbeat', '15')
  return parsed.href
}

/** Named by the longest time each is for, so that a change of the delays makes new queues and alters none. */
export function retryQueuesOf(where: string, queue: string, delays: readonly Duration[]): RetryQueue[] {
  if (!Array.isArray(delays) || delays.length === 0 || delays.length > 20) {
    throw new WaybillError('INVALID_OPTION', `${where}: retryDelays must be a list of 1 to 20 durations`)
  }
  const bounds = delays.map((delay) => Math.ceil(milliseconds(delay, `${where}: retryDelays`)))
  if (bounds.some((bound) => bound < 1 || bound > 0xffff_ffff)) {
    throw new WaybillError('INVALID_OPTION', `${where}: retryDelays are from 1 ms to 49 days, the longest TTL there is`)
  }
  return [...new Set(bounds)].sort((a, b) => a - b).map((bound) => ({ name: `${queue}.retry.${bound}ms`, bound }))
}
