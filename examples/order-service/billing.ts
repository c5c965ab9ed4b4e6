// Billing takes part in the saga with invoices, and writes a letter to the buyer whenever the status of an order changes.

import { Router, transactional } from 'waybill'
import { stores } from './db.ts'
import {
  InvoiceIssued,
  InvoiceRefused,
  InvoiceVoided,
  IssueInvoice,
  OrderStatusChanged,
  VoidInvoice,
} from './events.ts'

const db = stores.billing

/** In cents: nobody gets more on account. */
const LIMIT = 100_000

export const requests = [IssueInvoice, VoidInvoice, OrderStatusChanged]

export const billing = new Router('billing')
  .use(transactional(db))
  .on(IssueInvoice, (message, { tx }) =>
    db.barrier(tx, message, async () => {
      const { orderId, buyerId, total } = message.data
      if (total > LIMIT) return InvoiceRefused({ orderId })
      await tx.query('INSERT INTO invoices VALUES ($1, $2, $3)', [orderId, buyerId, total])
      return InvoiceIssued({ number: orderId.slice(0, 8) })
    }),
  )
  .on(VoidInvoice, (message, { tx }) =>
    db.barrier(tx, message, async () => {
      const { orderId } = message.data
      await tx.query(`UPDATE invoices SET state = 'void' WHERE order_id = $1`, [orderId])
      return InvoiceVoided({ orderId })
    }),
  )
  // No saga asks for it, so the inbox alone keeps it from being written twice.
  .on(OrderStatusChanged, async ({ data: { orderId, newStatus, reason } }, { tx }) => {
    const text = `your order is ${newStatus}${reason === '' ? '' : `: ${reason}`}`
    await tx.query('INSERT INTO letters VALUES ($1, $2)', [orderId, text])
  })
