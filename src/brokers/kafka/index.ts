/** `waybill/kafka`: Kafka as a broker. */
export type {
  ConsumerEvents,
  ConsumerSettings,
  KafkaAdmin,
  KafkaBatch,
  KafkaClient,
  KafkaConsumer,
  KafkaHeaders,
  KafkaOffset,
  KafkaPlace,
  KafkaProducer,
  KafkaRecord,
  KafkaRefusal,
  NewTopic,
  OutgoingRecord,
  ProducerSettings,
} from '../../drivers/kafka/kafka.ts'
export type { KafkaLike } from '../../drivers/kafka/recognise.ts'
export {
  type CreateTopics,
  type KafkaBroker,
  type KafkaOptions,
  type KafkaPublisherOptions,
  type KafkaSourceOptions,
  kafka,
} from './broker.ts'
export type { KafkaDeadLetter } from './dead-letters.ts'
export type { KafkaDecode, KafkaEncode, KafkaEncoded } from './encoding.ts'
export type { KafkaDelivery } from './partition.ts'
export type { KafkaSession } from './session.ts'
export type { KafkaSource, PartitionStats } from './source.ts'
