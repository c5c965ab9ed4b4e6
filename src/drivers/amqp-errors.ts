import { errorSummary, Unavailable, WaybillError } from '../core/index.ts'

/** What a server of RabbitMQ says when it refuses something, and what that means. */

/** AMQP's reply codes that we distinguish. */
export const REPLY = { accessRefused: 403, notFound: 404, preconditionFailed: 406, notAllowed: 530 } as const

/** The reply code of an error the server has closed a channel or a connection with. */
export function replyCode(error: unknown): number | undefined {
  const code = (error as { code?: unknown } | undefined)?.code
  return typeof code === 'number' ? code : undefined
}

/**
 * What the server said when it closed a channel: names and settings, never a message. Without the quotes the client puts
 * around it: logs leave out what is quoted and long.
 */
export function serverSaid(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error)
  const said = text.replace(/^.*?with message /s, '')
  return (/^"(.*)"$/s.exec(said)?.[1] ?? said).slice(0, 300)
}

/**
 * Whether connecting failed for a reason that no waiting mends: the server has refused the user, or knows no such virtual
 * host.
 */
export function isRefusedConnection(error: unknown): boolean {
  const { cause } = error as { cause?: unknown }
  return error instanceof Unavailable && refusalOf(cause) !== undefined
}

/** What a `start` rejects with after such a refusal. Once started the same is an outage: a password may be changed, and changed back. */
export function accessRefused(error: unknown): WaybillError {
  return new WaybillError('ACCESS_REFUSED', (error as Error).message, { cause: error })
}

function refusalOf(error: unknown): 'user' | 'virtual host' | undefined {
  // An error of the socket: what looks like a reply in its text is a port.
  if (typeof (error as { code?: unknown } | undefined)?.code === 'string') return undefined
  const text = error instanceof Error ? error.message : String(error)
  if (/ACCESS[-_]REFUSED|\b403\b/.test(text)) return 'user'
  return /NOT[-_]ALLOWED|\b530\b|Expected ConnectionOpenOk/.test(text) ? 'virtual host' : undefined
}

/** What went wrong and what to look at. Never with the password. */
export function connectError(url: string, error: unknown, after: number): WaybillError {
  const { protocol, host, pathname, username } = new URL(url)
  const where = `${protocol}//${host}${pathname}`
  const text = error instanceof Error ? error.message : String(error)
  const because = (advice: string) =>
    new Unavailable(`cannot connect to RabbitMQ at ${where}: ${advice}`, { cause: error, after })
  const refused = refusalOf(error)
  if (refused === 'user') {
    return because(`user ${JSON.stringify(username || 'guest')} was refused; check name, password and permissions`)
  }
  if (refused === 'virtual host') {
    const vhost = decodeURIComponent(pathname.slice(1)) || '/'
    return because(`the virtual host ${JSON.stringify(vhost)} does not exist, is full, or this user may not use it`)
  }
  const code = (error as { code?: unknown } | undefined)?.code
  if (protocol === 'amqps:' && /SSL|TLS|EPROTO|socket disconnected/i.test(`${String(code)} ${text}`)) {
    return because(`no TLS there (${errorSummary(error)}); use amqp:, or the port for TLS (5671 mostly)`)
  }
  return because(errorSummary(error))
}
