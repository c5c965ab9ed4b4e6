import type { BrokerBench } from './broker.ts'
import { httpBench } from './http.ts'
import { kafkaBench } from './kafka.ts'
import { natsBench } from './nats.ts'
import { rabbitmqBench } from './rabbitmq.ts'
import { redisStreamsBench } from './redis-streams.ts'

export const BROKERS: readonly BrokerBench[] = [rabbitmqBench, redisStreamsBench, natsBench, kafkaBench, httpBench]

export function brokerNamed(name: string): BrokerBench {
  return BROKERS.find((broker) => broker.name === name)!
}
