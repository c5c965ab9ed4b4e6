/** `waybill/rabbitmq`: RabbitMQ as a broker. */
export type {
  AmqpChannel,
  AmqpClient,
  AmqpConfirmChannel,
  AmqpConnection,
  AmqpDelivery,
  AmqpProperties,
  AmqpSocketOptions,
} from '../../drivers/amqp.ts'
export {
  type RabbitmqBroker,
  type RabbitmqOptions,
  type RabbitmqPublisherOptions,
  type RabbitmqSourceOptions,
  rabbitmq,
} from './broker.ts'
export type { RabbitmqDeadLetter } from './dead-letters.ts'
export type { AmqpContent, RabbitmqDecode, RabbitmqEncode } from './encoding.ts'
export type { RabbitmqPublisher, Unroutable } from './publisher.ts'
export type { RabbitmqDelivery } from './session.ts'
export type { RabbitmqSource, RabbitmqStats } from './source.ts'
