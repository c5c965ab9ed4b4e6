/** `waybill/nats`: NATS JetStream as a broker. */
export type { NatsConnectionLike, NatsLike } from '../../drivers/nats/nats.ts'
export { type NatsBroker, type NatsOptions, type NatsPublisherOptions, type NatsSourceOptions, nats } from './broker.ts'
export type { NatsDeadLetter } from './dead-letters.ts'
export type { NatsDecode, NatsEncode, NatsEnvelope } from './encoding.ts'
export type { NatsDelivery } from './member.ts'
export type { NatsPublisher } from './publisher.ts'
export type { NatsStreamOptions } from './setup.ts'
export type { NatsSource, NatsStats } from './source.ts'
