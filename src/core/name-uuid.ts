import { createHash } from 'node:crypto'
import { formatUuid, isUuid } from './uuid.ts'

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
