import { WaybillError } from '../../core/index.ts'

/** CRC16 (XMODEM), as Redis Cluster uses it. */
const TABLE = Uint16Array.from({ length: 256 }, (_, i) => {
  let crc = i << 8
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
  return crc
})

/** The hash slot of a key: that of its tag when it has one, otherwise of the whole. */
export function slotOf(key: string): number {
  let crc = 0
  for (const byte of Buffer.from(tagOf(key) ?? key)) crc = ((crc << 8) & 0xffff) ^ TABLE[(crc >> 8) ^ byte]!
  return crc % 16384
}

/** By their tags, which is all there is to compare in most cases. */
export function sameSlot(a: string, b: string): boolean {
  const tag = tagOf(a)
  return (tag !== undefined && tag === tagOf(b)) || slotOf(a) === slotOf(b)
}

/** What stands between the first `{` and the next `}`, unless that is nothing. */
function tagOf(key: string): string | undefined {
  const open = key.indexOf('{')
  const close = open < 0 ? -1 : key.indexOf('}', open + 1)
  return close > open + 1 ? key.slice(open + 1, close) : undefined
}

/** A name made from `key` that lives in the same slot: `orders` → `{orders}:dead`, `{shop}:orders` → `{shop}:orders:dead`. */
export function besides(key: string, suffix: string): string {
  const name = tagOf(key) === undefined ? `{${key}}${suffix}` : `${key}${suffix}`
  if (slotOf(name) === slotOf(key)) return name
  throw new WaybillError(
    'INVALID_OPTION',
    `the key ${JSON.stringify(key)} has braces that are no hash tag, so no name beside it can be derived; name it yourself`,
  )
}

/** Refuses keys of different slots before they are sent: Redis Cluster would answer CROSSSLOT at some later time. */
export function checkSameSlot(where: string, keys: readonly string[]): void {
  const [first, ...others] = keys
  const other = others.find((key) => !sameSlot(key, first!))
  if (other === undefined) return
  throw new WaybillError(
    'CROSSSLOT',
    `${where}: ${JSON.stringify(first)} and ${JSON.stringify(other)} live in different slots of the cluster, but must change ` +
      'together; give them a common hash tag, such as {shop}:orders and {shop}:orders:dead',
  )
}
