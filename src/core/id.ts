import { createHash } from 'node:crypto'
import type { Clock } from './clock.ts'
import { systemClock } from './clock.ts'
import { type Random, systemRandom } from './random.ts'

const HEX = Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, '0'))
const bytes = new Uint8Array(16)

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

export function isUuid(text: string): boolean {
  return UUID.test(text)
}

/** A UUID of version 7: it begins with the time, so that an index of ids grows at its end. */
export function uuidv7(clock: Clock = systemClock, random: Random = systemRandom): string {
  random.fill(bytes)
  let time = clock.now()
  for (let i = 5; i >= 0; i--) {
    bytes[i] = time % 256
    time = Math.floor(time / 256)
  }
  bytes[6] = (bytes[6]! & 0x0f) | 0x70
  bytes[8] = (bytes[8]! & 0x3f) | 0x80
  return formatUuid(bytes)
}

export function formatUuid(b: Uint8Array): string {
  return (
    `${HEX[b[0]!]}${HEX[b[1]!]}${HEX[b[2]!]}${HEX[b[3]!]}-${HEX[b[4]!]}${HEX[b[5]!]}-${HEX[b[6]!]}${HEX[b[7]!]}-` +
    `${HEX[b[8]!]}${HEX[b[9]!]}-${HEX[b[10]!]}${HEX[b[11]!]}${HEX[b[12]!]}${HEX[b[13]!]}${HEX[b[14]!]}${HEX[b[15]!]}`
  )
}

/** A UUID made of names alone: the same names always give the same id. Version 3 (MD5) or 5 (SHA-1). */
export function nameUuid(version: 3 | 5, namespace: string, name: string): string {
  const hash = createHash(version === 3 ? 'md5' : 'sha1')
    .update(Buffer.from(namespace.replaceAll('-', ''), 'hex'))
    .update(name, 'utf8')
    .digest()
  hash[6] = (hash[6]! & 0x0f) | (version << 4)
  hash[8] = (hash[8]! & 0x3f) | 0x80
  return formatUuid(hash)
}

/** The namespace of event ids that were not UUIDs to begin with. */
const FOREIGN_EVENTS = '6f1f8a04-6b0e-5c3a-9f0e-3a9d7f6c2b51'

/** A UUID for an event: its own id where that is one; otherwise made of source and id, so that the same event has the same. */
export function eventUuid({ source, id }: { readonly source: string; readonly id: string }): string {
  return isUuid(id) ? id.toLowerCase() : nameUuid(5, FOREIGN_EVENTS, `${source}\0${id}`)
}
