/** `waybill/http`: CloudEvents webhooks, signed as Standard Webhooks has it. */

export type { Lookup } from './addresses.ts'
export type { HttpDelivery } from './arrivals.ts'
export type { Mode } from './encoding.ts'
export type { BodyLimits, Incoming, Unread, Verdict } from './incoming.ts'
export { type Handle, nodeListener, type Receives } from './node-listener.ts'
export { type HttpDecode, HttpReceiver, type HttpReceiverOptions, httpReceiver } from './receiver.ts'
export { HttpSender, httpSender } from './sender.ts'
export type { HttpSenderOptions, UrlOf } from './sender-options.ts'
