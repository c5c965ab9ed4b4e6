import { describeWith, service } from '../../support/services.ts'
import { killTests } from '../kills.ts'
import { broker, connecting } from './support.ts'

describeWith(['nats', 'postgres'], 'nats: processes are killed', () => {
  killTests({
    broker: 'NATS',
    folder: import.meta.url,
    async place() {
      const { url } = service('nats')
      const mine = broker(connecting(url))
      const { stream } = mine
      const source = mine.source({ group: 'billing', create: true, ackWait: '2s' })
      await (await source.open()).close()
      const publisher = mine.publisher({ subject: `${stream}.order.placed` })
      return {
        job: { url, stream },
        publish: (messages, signal) => publisher.publish(messages, signal),
        async waiting() {
          const { lag, pending } = await source.stats()
          return lag + pending
        },
        dead: async () => (await source.stats()).dead,
        async close() {
          await publisher.close()
          await mine.close()
        },
      }
    },
  })
})
