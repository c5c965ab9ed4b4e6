import type { Delivery, Demand } from './source.ts'

/** Takes from the front of `stock` what a demand has room for, and at least one if there is any. */
export function takeFrom<D extends Delivery>(stock: D[], { count, bytes }: Demand): D[] {
  const most = Math.min(Math.max(1, count), stock.length)
  let given = Math.min(1, most)
  for (let size = stock[0]?.size ?? 0; given < most; given++) {
    size += stock[given]!.size
    if (size > bytes) break
  }
  return stock.splice(0, given)
}
