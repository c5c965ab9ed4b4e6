// Fulfilment of an order: stock is reserved, then an invoice is issued. What goes wrong, and whatever the buyer cancels, is
// undone in reverse. Both steps are messages, so nobody waits for the other services: they may be away for a while.

import { SagaClient, SagaRunner, saga, sagaReplies } from 'waybill/saga'
import { z } from 'zod'
import { stores, type Tx } from './db.ts'
import {
  InvoiceIssued,
  InvoiceRefused,
  InvoiceVoided,
  IssueInvoice,
  ReleaseStock,
  ReserveStock,
  StockRefused,
  StockReleased,
  StockReserved,
  VoidInvoice,
} from './events.ts'
import { changeStatus } from './status.ts'

const Order = z.object({ orderId: z.uuid(), buyerId: z.string(), sku: z.string(), quantity: z.int(), total: z.int() })

const ENDS = { completed: 'confirmed', compensated: 'cancelled', failed: 'stuck' } as const

export const fulfilment = saga('fulfilment', { version: 1, input: Order, aggregate: (order) => order.orderId })
  .request('stock', {
    send: ({ input: { orderId, sku, quantity } }) => ReserveStock({ orderId, sku, quantity }),
    reply: StockReserved,
    refused: StockRefused,
    undo: ({ input: { orderId } }) => ReleaseStock({ orderId }),
    undone: StockReleased,
  })
  .request('invoice', {
    send: ({ input: { orderId, buyerId, total } }) => IssueInvoice({ orderId, buyerId, total }),
    reply: InvoiceIssued,
    refused: InvoiceRefused,
    undo: ({ input: { orderId } }) => VoidInvoice({ orderId }),
    undone: InvoiceVoided,
  })
  // In the last write of the saga: the order and its saga end together, or neither does.
  .onEnd((c, tx: Tx) => changeStatus(tx, c.input.orderId, ENDS[c.status], c.reason ?? ''))

/** For those who start and cancel sagas and leave the driving to a runner in another process. */
export const sagas = new SagaClient(fulfilment, stores.orders)

/** How long a process that was killed is waited for, before another takes over what it held. */
export const LEASE = (process.env['LEASE'] ?? '15s') as `${number}s`

export const runner = () => new SagaRunner({ store: stores.orders, sagas: [fulfilment], lease: LEASE })

export const answers = [StockReserved, StockRefused, StockReleased, InvoiceIssued, InvoiceRefused, InvoiceVoided]
/** Takes the answers, and moves on the sagas they belong to. */
export const replies = sagaReplies({ store: stores.orders, sagas: [fulfilment] })
