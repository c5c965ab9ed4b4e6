/** Kafka, one node that is broker and controller, from its jars: there is neither an npm nor a Debian package of it. */
import { randomBytes } from 'node:crypto'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { cached } from '../cache.ts'
import { command, give, onPath, root } from '../files.ts'
import type { Account, Binaries, Entry, Site } from '../types.ts'

const VERSION = '3.9.1'

const POM = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>waybill</groupId><artifactId>test-kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>${VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
`

async function binaries(say: (text: string) => void): Promise<Binaries> {
  const jars = await cached(`kafka/jars-${VERSION}`, async (dir) => {
    await tools(say)
    say(`fetching the jars of Kafka ${VERSION} with mvn`)
    await writeFile(join(dir, 'pom.xml'), POM)
    const goal = ['dependency:copy-dependencies', `-DoutputDirectory=${join(dir, 'jars')}`]
    // A repository of its own: Java looks for the usual one where the password file says, which may be nowhere.
    const repository = join(dir, 'repository')
    await command('mvn', ['-B', '-q', `-Dmaven.repo.local=${repository}`, ...goal], { cwd: dir })
    await rm(repository, { recursive: true })
    await command('chmod', ['-R', 'a+rX', dir])
  })
  if (!onPath('java')) await tools(say)
  return { origin: 'maven', version: VERSION, bin: join(jars, 'jars') }
}

/** These two are not unpacked like other Debian packages: Java reads its settings and certificates from /etc. */
async function tools(say: (text: string) => void): Promise<void> {
  if (onPath('java') && onPath('mvn')) return
  if (!root || !onPath('apt-get')) throw new Error('java and mvn are not on the PATH')
  say('installing Debian packages: maven default-jre-headless')
  const env = { DEBIAN_FRONTEND: 'noninteractive' }
  await command('apt-get', ['-q', 'update'], { env })
  await command('apt-get', ['-qy', 'install', '--no-install-recommends', 'maven', 'default-jre-headless'], { env })
}

function java(bin: string, program: string, args: string[], heap = '512m'): string[] {
  // A small heap and a simple collector: it shares two processors with the tests.
  const machine = [`-Xmx${heap}`, '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-Djava.awt.headless=true']
  const log = ['-Dorg.slf4j.simpleLogger.defaultLogLevel=warn', '-Dorg.slf4j.simpleLogger.showDateTime=true']
  return [...machine, ...log, '-cp', join(bin, '*'), program, ...args]
}

function properties(port: number, controller: number, dataDir: string, extra: Record<string, string> = {}): string {
  const settings: Record<string, string> = {
    'process.roles': 'broker,controller',
    'node.id': '1',
    'controller.quorum.voters': `1@127.0.0.1:${controller}`,
    'controller.listener.names': 'CONTROLLER',
    listeners: `PLAINTEXT://127.0.0.1:${port},CONTROLLER://127.0.0.1:${controller}`,
    'advertised.listeners': `PLAINTEXT://127.0.0.1:${port}`,
    'log.dirs': dataDir,
    // One node cannot hold three copies of its own bookkeeping.
    'offsets.topic.replication.factor': '1',
    'offsets.topic.num.partitions': '8',
    'transaction.state.log.replication.factor': '1',
    'transaction.state.log.min.isr': '1',
    'transaction.state.log.num.partitions': '8',
    // After a crash the controller keeps the broker's place for this long; the default makes each restart take 15 s.
    'broker.session.timeout.ms': '2000',
    'broker.heartbeat.interval.ms': '500',
    'group.initial.rebalance.delay.ms': '0',
    // Tests that kill a consumer wait for the group to miss it.
    'group.min.session.timeout.ms': '300',
    // A topic that a typing mistake creates hides the mistake.
    'auto.create.topics.enable': 'false',
    ...extra,
  }
  return `${Object.entries(settings)
    .map(([name, value]) => `${name}=${value}`)
    .join('\n')}\n`
}

/** Formatting takes as long as starting; a copy of a formatted folder takes nothing. */
async function storage(dir: string, bin: string, owner: Account | null): Promise<string> {
  const template = await cached(`kafka/storage-${VERSION}-${owner?.name ?? 'me'}`, async (draft) => {
    const file = join(draft, 'server.properties')
    await writeFile(file, properties(9092, 9093, join(draft, 'data')))
    await give(draft, owner)
    const id = Buffer.from('waybill-test-run').toString('base64url')
    const format = ['format', '--cluster-id', id, '--config', file]
    await command('java', java(bin, 'kafka.tools.StorageTool', format), { account: owner, cwd: draft })
  })
  const dataDir = join(dir, 'data')
  await command('cp', ['-R', join(template, 'data'), dataDir], { account: owner, cwd: '/' })
  return dataDir
}

/** The copy says that it is node 1. */
async function renumber(dataDir: string, node: string, owner: Account | null): Promise<void> {
  const file = join(dataDir, 'meta.properties')
  const text = await readFile(file, 'utf8')
  const id = randomBytes(16).toString('base64url')
  await writeFile(
    file,
    text.replace(/^node\.id=.*$/m, `node.id=${node}`).replace(/^directory\.id=.*$/m, `directory.id=${id}`),
  )
  await give(file, owner)
}

/**
 * Settings that are not Kafka's: `heap`; `port` and `controller`, ports chosen by the test; and with the latter `node`, a
 * further broker beside the first, which is the controller for all.
 */
async function prepare(site: Site) {
  const { heap, node, controller = String(await site.port()), port: chosen, ...settings } = site.settings
  const port = chosen === undefined ? await site.port() : Number(chosen)
  const dataDir = await storage(site.dir, site.binaries.bin, site.account)
  if (node !== undefined) {
    await renumber(dataDir, node, site.account)
    const listeners = `PLAINTEXT://127.0.0.1:${port}`
    Object.assign(settings, { 'node.id': node, 'process.roles': 'broker', listeners })
  }
  const file = join(site.dir, 'server.properties')
  await writeFile(file, properties(port, Number(controller), dataDir, settings))
  await give(file, site.account)
  const args = java(site.binaries.bin, 'kafka.Kafka', [file], heap)
  const server = site.launch('kafka', { command: onPath('java')!, args })
  return { port, launches: [server], dataDir }
}

export const kafka: Entry = {
  name: 'kafka',
  variable: 'WAYBILL_TEST_KAFKA_URL',
  defaultUrl: 'kafka://127.0.0.1:9092',
  protocol: 'kafka',
  install: 'apt-get install maven default-jre-headless, or a broker named in WAYBILL_TEST_KAFKA_URL',
  accounts: ['nobody'],
  container: true,
  url: (port) => `kafka://127.0.0.1:${port}`,
  binaries,
  prepare,
}
