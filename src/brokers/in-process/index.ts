/** `waybill/in-process`: a broker and an event bus inside one process. */
export {
  InProcessBroker,
  type InProcessBrokerOptions,
  type InProcessPublisherOptions,
  type SubscriptionOptions,
  type WhichDead,
} from './broker.ts'
export { type BusOptions, EventBus, type Subscriber } from './bus.ts'
export type { DeadLetter, InProcessDelivery, QueueStats } from './queue.ts'
