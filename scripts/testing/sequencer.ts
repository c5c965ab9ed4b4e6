/** The order of test files: the longest first, so that none of them is left alone at the end while the other workers idle. */
import { BaseSequencer, type TestSpecification } from 'vitest/node'

/** Those of more than some 15 seconds. All others follow as vitest has it: by size, or by how long they took the last time. */
export const LONGEST = [
  'test/postgres/conformance-pglite.test.ts',
  'test/examples/examples.test.ts',
  'test/readme/readme.test.ts',
  'test/outbox/routing-relay.test.ts',
  'test/brokers/rabbitmq/outage.test.ts',
  'test/saga/faults/kills.test.ts',
  'test/postgres/odd-rows.test.ts',
  'test/postgres/conformance.test.ts',
  'test/postgres/settings.test.ts',
  'test/brokers/redis-streams/faults.test.ts',
  'test/postgres/pool.test.ts',
  'test/postgres/archive.test.ts',
  'test/brokers/kafka/conformance.test.ts',
  'test/postgres/never-returns.test.ts',
  'test/brokers/redis-streams/cluster-failover.test.ts',
  'test/postgres/session.test.ts',
  'test/postgres/partitions.test.ts',
  'test/postgres/faults/zombie.test.ts',
  'test/postgres/faults/poison.test.ts',
  'test/postgres/refused.test.ts',
  'test/redis/outbox-faults.test.ts',
  'test/postgres/faults/crash.test.ts',
  'test/postgres/faults/wake.test.ts',
  'test/postgres/faults/restart.test.ts',
  'test/brokers/nats/faults.test.ts',
  'test/postgres/owner.test.ts',
  'test/brokers/redis-streams/cluster.test.ts',
  'test/brokers/kafka/restart.test.ts',
  'test/brokers/kafka/faults.test.ts',
  'test/postgres/migrate.test.ts',
  'test/postgres/lost-store.test.ts',
  'test/outbox/relay-order.test.ts',
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
