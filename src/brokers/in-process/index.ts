/** `waybill/in-process`: a broker and an event bus inside one process. */
export {
  InProcessBroker,
  type InProcessBrokerOptions,
  type InProcessPublisherOptions,
  type SubscriptionOptions,
} from './broker.ts'
export { type BusOptions, EventBus, type Subscriber } from './bus.ts'
export type { InProcessDeadLetter, InProcessDelivery, InProcessStats } from './queue.ts'
