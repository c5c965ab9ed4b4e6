/** The order of test files: the longest first, so that none of them is left alone at the end while the other workers idle. */
import { BaseSequencer, type TestSpecification } from 'vitest/node'

/** Those of more than 20 seconds. All others follow as vitest has it: by size, or by how long they took the last time. */
export const LONGEST = [
  'test/examples/examples.test.ts',
  'test/postgres/conformance-pglite.test.ts',
  'test/brokers/redis-streams/faults.test.ts',
  'test/brokers/rabbitmq/outage.test.ts',
  'test/postgres/archive.test.ts',
  'test/saga/faults/kills.test.ts',
  'test/redis/outbox-faults.test.ts',
  'test/postgres/faults/restart.test.ts',
  'test/brokers/redis-streams/cluster.test.ts',
  'test/brokers/http/conformance.test.ts',
  'test/postgres/settings.test.ts',
  'test/postgres/pool.test.ts',
  'test/postgres/session.test.ts',
  'test/postgres/conformance.test.ts',
  'test/brokers/redis-streams/conformance.test.ts',
  'test/readme/readme.test.ts',
  'test/routing/routing.test.ts',
  'test/brokers/kafka/conformance.test.ts',
  'test/brokers/redis-streams/cluster-failover.test.ts',
  'test/relay/order.test.ts',
  'test/postgres/faults/zombie.test.ts',
  'test/brokers/kafka/restart.test.ts',
]

export default class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) => {
      const at = LONGEST.findIndex((name) => moduleId.endsWith(`/${name}`))
      return at < 0 ? LONGEST.length : at
    }
    return (await super.sort(files)).sort((a, b) => place(a) - place(b))
  }
}
