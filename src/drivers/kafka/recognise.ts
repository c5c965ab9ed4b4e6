import { describe, WaybillError } from '../../core/index.ts'
import { has } from '../has.ts'
import type { KafkaClient } from './kafka.ts'
import { isKafkaJs, isKafkaJsClass, type KafkaJsConnection, kafkaJs, kafkaJsOf } from './kafka-js.ts'

/** The class `Kafka` of kafkajs, a client made with it, or a client of your own making. */
export type KafkaLike = KafkaClient | object

/** The client is recognised by its methods: nothing is imported to ask. */
export function kafkaOf(where: string, given: KafkaLike, connection: Partial<KafkaJsConnection>): KafkaClient {
  const { brokers, timeout = 10_000, ...rest } = connection
  if (isKafkaJsClass(given)) return kafkaJsOf(given, { brokers: addresses(where, brokers), timeout, ...rest })
  const known = isKafkaJs(given) ? kafkaJs(given) : has(given, 'producer', 'consumer', 'admin') && 'driver' in given
  if (known === false) {
    throw new WaybillError(
      'INVALID_OPTION',
      `${where}: client: ${describe(given)} is no Kafka client that is known here; give the class Kafka of kafkajs, with brokers, ` +
        'or a client made with it',
    )
  }
  const superfluous = Object.entries({ brokers, ...rest }).find(([, value]) => value !== undefined)
  if (superfluous !== undefined) {
    throw new WaybillError(
      'INVALID_OPTION',
      `${where}: ${superfluous[0]}: the client knows that already; leave it out, or give the class Kafka instead of a client`,
    )
  }
  return known === true ? (given as KafkaClient) : known
}

function addresses(where: string, given: unknown): readonly string[] {
  const list = typeof given === 'string' ? [given] : given
  if (!Array.isArray(list) || list.length === 0) {
    throw new WaybillError('INVALID_OPTION', `${where}: brokers: ${describe(given)} is not a list of "host:port"`)
  }
  for (const one of list) {
    const port = typeof one === 'string' ? /^[^\s/]+:(\d{1,5})$/.exec(one)?.[1] : undefined
    if (port !== undefined && Number(port) > 0 && Number(port) < 65_536) continue
    throw new WaybillError('INVALID_OPTION', `${where}: brokers: ${describe(one)} is not of the form "host:port"`)
  }
  return list
}
