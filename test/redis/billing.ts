import { event } from '../../src/core/index.ts'

export const Placed = event<{ n: number }>('order.placed')
export const Invoiced = event<{ n: number }>('invoice.sent')

/** What the handler asks of the world. Which database is behind it, and whether there is a transaction, it does not know. */
export interface Totals {
  add(n: number): Promise<void>
}

/** A handler as users write it: this file imports no driver and no store. */
export function billing(totals: Totals) {
  return async ({ data }: { readonly data: { readonly n: number } }) => {
    await totals.add(data.n)
    return Invoiced({ n: data.n })
  }
}
