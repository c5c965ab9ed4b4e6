/** The service in a process of its own, to be killed. Arguments: the URL of Redis, and settings as JSON. */

import { telemetry } from '../../../src/core/index.ts'
import { shutdownSignal } from '../../../src/flow/index.ts'
import { type ServiceSettings, serviceOn } from './service.ts'

const [url, text] = process.argv.slice(2) as [string, string]
const settings = JSON.parse(text) as ServiceSettings
const service = serviceOn(url, { ...settings, onHandle: (id) => console.log(`handling ${id}`) })

telemetry['inbox.fenced'].subscribe(() => console.log('fenced'))
telemetry['message.dead'].subscribe(({ id, reason }) => console.log(`dead ${id} ${reason}`))

await service.start()
console.log('ready')
shutdownSignal().addEventListener('abort', async () => {
  await service.stop()
  process.exit(0)
})
