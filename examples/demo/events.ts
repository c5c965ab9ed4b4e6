import { event } from 'waybill'
import { z } from 'zod'

// Both services share the definition: a name and a schema.
export const OrderPlaced = event(
  'order.placed',
  z.object({ orderId: z.number(), customer: z.string(), total: z.number() }),
)
