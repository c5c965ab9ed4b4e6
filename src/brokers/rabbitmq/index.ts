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
  Rabbitmq,
  type RabbitmqOptions,
  type RabbitmqPublisherOptions,
  type RabbitmqSourceOptions,
  rabbitmq,
} from './broker.ts'
export type { DeadLetter, DeadLetterOptions, WhichDead } from './dead-letters.ts'
export type { AmqpContent, RabbitmqDecode, RabbitmqEncode } from './encoding.ts'
export type { RabbitmqPublisher } from './publisher.ts'
export type { RabbitmqDelivery } from './session.ts'
export type { QueueStats, RabbitmqSource } from './source.ts'
