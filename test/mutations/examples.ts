import type { Mutation } from '../../scripts/mutations/mutation.ts'

/** What the books of the order service must show. */
const BOOKS = {
  test: 'test/examples/order-service.test.ts',
  expects: 'orders, view, invoices and stock add up',
  needs: ['postgres', 'rabbitmq'],
}

/** Faults of the example service: an end-to-end test that finds none of them checks nothing. */
export const mutations: Mutation[] = [
  {
    name: 'the invoice of a cancelled order stays open',
    file: 'examples/order-service/billing.ts',
    find: "SET state = 'void'",
    replace: "SET state = 'open'",
    ...BOOKS,
  },
  {
    name: 'stock that is released does not come back',
    file: 'examples/order-service/inventory.ts',
    find: 'SET on_hand = on_hand + quantity FROM given',
    replace: 'SET on_hand = on_hand FROM given',
    ...BOOKS,
  },
  {
    name: 'the list keeps the old name of a buyer',
    file: 'examples/order-service/view.ts',
    find: '{ buyer_name: data.newName }',
    replace: '{ buyer_id: data.buyerId }',
    ...BOOKS,
  },
  {
    name: 'a process stops its relays before its consumers',
    file: 'src/flow/worker.ts',
    find: "'requests', 'consumers', 'relays'",
    replace: "'requests', 'relays', 'consumers'",
    ...BOOKS,
  },
]
