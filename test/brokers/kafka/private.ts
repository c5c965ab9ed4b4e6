/** Kafka servers of one test file's own, to crash at will, and behind a bad network. */
import { afterAll } from 'vitest'
import { kafka } from '../../../scripts/services/kinds/kafka.ts'
import { freePort } from '../../../scripts/services/ports.ts'
import { startPrivate } from '../../../scripts/services/provision.ts'
import { openRun, type Run } from '../../../scripts/services/run.ts'
import * as control from '../../../scripts/services/server.ts'
import type { Server } from '../../../scripts/services/types.ts'
import { type FaultProxy, faultProxy } from '../../../src/testing/index.ts'

let run: Promise<Run> | undefined
const servers: Server[] = []
const proxies: FaultProxy[] = []

afterAll(async () => {
  await Promise.all(proxies.map((proxy) => proxy.close()))
  await Promise.all(servers.map((server) => control.stop(server, 'immediate')))
  await (await run)?.close()
})

export async function privateKafka(settings: Record<string, string> = {}): Promise<Server> {
  run ??= openRun()
  const server = await startPrivate(kafka, { run: (await run).dir, settings })
  servers.push(server)
  return server
}

/** A server that tells its clients to come through the proxy: what it advertises is where they go. */
export async function kafkaBehindProxy(): Promise<{ server: Server; proxy: FaultProxy; url: string }> {
  const listen = await freePort()
  const server = await privateKafka({ 'advertised.listeners': `PLAINTEXT://127.0.0.1:${listen}` })
  const { hostname: host, port } = new URL(server.url)
  const proxy = await faultProxy({ host, port: Number(port), listen })
  proxies.push(proxy)
  return { server, proxy, url: `kafka://127.0.0.1:${listen}` }
}

/** A server that lets in one user, on a listener of its own; returns the URL of that. */
export async function kafkaWithPassword(user: string, password: string): Promise<string> {
  return (await kafkaWithUsers(user, password)).url
}

/** The same, where rights are checked; whoever comes to `open` needs no password, and may do everything. */
export async function kafkaWithRights(user: string, password: string): Promise<{ url: string; open: string }> {
  return await kafkaWithUsers(user, password, {
    'authorizer.class.name': 'org.apache.kafka.metadata.authorizer.StandardAuthorizer',
    'super.users': 'User:ANONYMOUS',
    'allow.everyone.if.no.acl.found': 'true',
  })
}

async function kafkaWithUsers(user: string, password: string, settings: Record<string, string> = {}) {
  const [plain, controller, listen] = [await freePort(), await freePort(), await freePort()]
  const module = 'org.apache.kafka.common.security.plain.PlainLoginModule'
  const { url: open } = await privateKafka({
    ...settings,
    port: String(plain),
    controller: String(controller),
    listeners: `PLAINTEXT://127.0.0.1:${plain},CONTROLLER://127.0.0.1:${controller},SASL://127.0.0.1:${listen}`,
    'advertised.listeners': `PLAINTEXT://127.0.0.1:${plain},SASL://127.0.0.1:${listen}`,
    'listener.security.protocol.map': 'CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT',
    'sasl.enabled.mechanisms': 'PLAIN',
    'listener.name.sasl.plain.sasl.jaas.config': `${module} required username="${user}" password="${password}" user_${user}="${password}";`,
  })
  return { url: `kafka://127.0.0.1:${listen}`, open }
}

/** Three brokers, the first of which is the controller: the others may be killed. */
export async function privateCluster(): Promise<Server[]> {
  const controller = String(await freePort())
  const copies = {
    'offsets.topic.replication.factor': '3',
    'default.replication.factor': '3',
    'min.insync.replicas': '2',
    heap: '256m',
    controller,
  }
  const first = await privateKafka(copies)
  const others = await Promise.all(['2', '3'].map((node) => privateKafka({ ...copies, node })))
  return [first, ...others]
}
