// What the services tell each other. Both ends import these definitions: neither can send what the other cannot read.

import { event } from 'waybill'
import { z } from 'zod'

const orderId = z.uuid()
const text = z.string()
const cents = z.int()

// ── facts: whoever is interested hears of them ──
export const OrderCreated = event('order.created', z.object({ orderId, buyerId: text, total: cents, createdAt: text }))
export const BuyerNameChanged = event('buyer.name_changed', z.object({ buyerId: text, newName: text }))

// Version 2 says why. While a deploy is under way both are in flight: old processes still write version 1, and messages of
// it wait in queues and in the log. The upcaster makes the new form of them, so every handler knows one form only.
export const OrderStatusChanged = event('order.status_changed', z.object({ orderId, status: text })).version(
  2,
  z.object({ orderId, newStatus: text, reason: text }),
  (old) => ({ orderId: old.orderId, newStatus: old.status, reason: '' }),
)

// ── requests of the saga to the inventory, and what it answers ──
export const ReserveStock = event('stock.reserve', z.object({ orderId, sku: text, quantity: z.int().positive() }))
export const StockReserved = event('stock.reserved', z.object({ left: z.int() }))
export const StockRefused = event('stock.sold_out', z.object({ orderId }))
export const ReleaseStock = event('stock.release', z.object({ orderId }))
export const StockReleased = event('stock.released', z.object({ orderId }))

// ── and to billing ──
export const IssueInvoice = event('invoice.issue', z.object({ orderId, buyerId: text, total: cents }))
export const InvoiceIssued = event('invoice.issued', z.object({ number: text }))
export const InvoiceRefused = event('invoice.over_limit', z.object({ orderId }))
export const VoidInvoice = event('invoice.void', z.object({ orderId }))
export const InvoiceVoided = event('invoice.voided', z.object({ orderId }))
