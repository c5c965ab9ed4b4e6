import { createHmac, type Hmac, timingSafeEqual } from 'node:crypto'
import { WaybillError } from '../../core/index.ts'

/**
 * Signatures as Standard Webhooks has them: `webhook-id`, `webhook-timestamp` and `webhook-signature`, in which each
 * secret in force has an entry `v1,` with the HMAC-SHA256 of `id.timestamp.body`, so that secrets can be changed one
 * side at a time.
 *
 * That does not cover headers, and in binary mode the attributes of an event are headers: whoever caught one request
 * could send its body again under another id. So there each secret has a second entry, `v1ce,`, over the attributes
 * too, with a key of its own that is made from the secret. Receivers that do not know it ignore it, as the standard
 * requires.
 */
export interface Secret {
  readonly body: Buffer
  readonly attributes: Buffer
}

const PREFIX = 'whsec_'
const [SHORTEST, LONGEST] = [24, 64]

export function secretsOf(where: string, given: unknown): readonly Secret[] {
  const list: readonly unknown[] = Array.isArray(given) ? given : [given]
  if (list.length === 0) throw invalid(where, 'none was given')
  return list.map((secret) => {
    if (typeof secret !== 'string') throw invalid(where, 'one is no text')
    const text = secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : secret
    if (!/^[A-Za-z0-9+/]+={0,2}$/.test(text)) throw invalid(where, 'one is not base64')
    const body = Buffer.from(text, 'base64')
    if (body.length < SHORTEST || body.length > LONGEST) throw invalid(where, `one has ${body.length} bytes`)
    return { body, attributes: createHmac('sha256', body).update('waybill v1ce').digest() }
  })
}

/** Never with the secret. */
function invalid(where: string, why: string): WaybillError {
  return new WaybillError(
    'INVALID_OPTION',
    `${where}: secrets: ${why}; give "${PREFIX}" and the base64 of ${SHORTEST} to ${LONGEST} random bytes, or several of those`,
  )
}

export interface Signed {
  readonly id: string
  /** Seconds since the epoch. */
  readonly timestamp: string
  readonly body: string | Uint8Array
  /** In binary mode: the attributes, see `attributesText`. */
  readonly attributes: string | undefined
}

export function signatureOf(secrets: readonly Secret[], signed: Signed): string {
  let signature = ''
  for (const secret of secrets) {
    if (signature !== '') signature += ' '
    signature += `v1,${bodyMac(secret, signed).digest('base64')}`
    if (signed.attributes !== undefined) signature += ` v1ce,${attributesMac(secret, signed).digest('base64')}`
  }
  return signature
}

/** `attributes`: the body is as it was signed, but nothing vouches for the attributes. */
export type Verified = 'whole' | 'attributes' | 'no'

/**
 * Every secret is tried with every entry, in a time that does not depend on how much of one was right. A body is hashed at most
 * twice for each secret, however many entries a stranger sends.
 */
export function verify(secrets: readonly Secret[], signature: string, signed: Signed): Verified {
  let body = false
  let attributes = signed.attributes === undefined
  const entries = signature
    .split(' ')
    .slice(0, MOST_ENTRIES)
    .map((entry) => entry.split(',', 2) as [string, string?])
  for (const secret of secrets) {
    let ofBody: Buffer | undefined
    let ofAttributes: Buffer | undefined
    for (const [version, text = ''] of entries) {
      if (version === 'v1') {
        ofBody ??= bodyMac(secret, signed).digest()
        if (same(Buffer.from(text, 'base64'), ofBody)) body = true
      } else if (version === 'v1ce' && signed.attributes !== undefined) {
        ofAttributes ??= attributesMac(secret, signed).digest()
        if (same(Buffer.from(text, 'base64'), ofAttributes)) attributes = true
      }
    }
  }
  if (!body) return 'no'
  return attributes ? 'whole' : 'attributes'
}

/** A request must not make us compare without end. */
const MOST_ENTRIES = 16

function same(given: Buffer, expected: Buffer): boolean {
  return given.length === expected.length && timingSafeEqual(given, expected)
}

function bodyMac(secret: Secret, { id, timestamp, body }: Signed): Hmac {
  return macOf(secret.body, `${id}.${timestamp}.`, body)
}

function attributesMac(secret: Secret, { id, timestamp, body, attributes = '' }: Signed): Hmac {
  return macOf(secret.attributes, `${id}.${timestamp}.${Buffer.byteLength(attributes)}.${attributes}`, body)
}

/** What is text altogether is handed over at once: each time costs about as much as to hash it. */
function macOf(key: Buffer, before: string, body: string | Uint8Array): Hmac {
  const mac = createHmac('sha256', key)
  return typeof body === 'string' ? mac.update(before + body) : mac.update(before).update(body)
}

/** The headers that are attributes, as they are on the wire, in one order. Names in lower case. */
export function attributesText(headers: Readonly<Record<string, string | undefined>>): string {
  const lines: string[] = []
  for (const name in headers) {
    if (name.startsWith('ce-') || name === 'content-type') lines.push(`${name}:${headers[name]!.trim()}\n`)
  }
  return lines.sort().join('')
}
