import { describeWith, service } from '../../support/services.ts'
import { killTests } from '../kills.ts'
import { brokerAt, dropQueues, fresh } from './support.ts'

describeWith(['rabbitmq', 'postgres'], 'rabbitmq: processes are killed', () => {
  killTests({
    broker: 'RabbitMQ',
    folder: import.meta.url,
    async place() {
      const { url } = service('rabbitmq')
      const [exchange, queue] = [fresh('x'), fresh('q')]
      const broker = brokerAt(url, { exchange })
      const source = broker.source({ queue })
      await (await source.open()).close()
      return {
        job: { url, exchange, queue },
        publish: (messages, signal) => broker.publish(messages, signal),
        async waiting() {
          const { waiting, retrying } = await source.stats()
          return waiting + retrying
        },
        dead: async () => (await source.stats()).dead,
        async close() {
          await broker.close()
          await dropQueues(url, queue)
        },
      }
    },
  })
})
