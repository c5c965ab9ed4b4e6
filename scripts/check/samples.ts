import { join } from 'node:path'
import ts from 'typescript'
import { manifest } from './packed.ts'
import { type Findings, root } from './run.ts'
import { readText, type TextFile, trackedFiles } from './tracked.ts'

/** What samples use of those before them, or of the reader's own code. */
const BEFORE: Readonly<Record<string, string>> = {
  pool: "import type pg from 'pg'\ndeclare const pool: pg.Pool",
  db: "import type { Postgres } from 'waybill/postgres'\nimport type { PoolClient } from 'pg'\ndeclare const db: Postgres<PoolClient>",
  OrderPlaced:
    "import { event as define } from 'waybill'\nconst OrderPlaced = define<{ orderId: string; total: number }>('order.placed')",
  consumer: "import type { Consumer } from 'waybill'\ndeclare const consumer: Consumer",
  relay: "import type { Relay } from 'waybill'\ndeclare const relay: Relay",
  broker: "import type { Publisher } from 'waybill'\ndeclare const broker: Publisher",
  admin: "import type { OutboxAdmin } from 'waybill'\ndeclare const admin: OutboxAdmin",
  client: "import type { PoolClient as Client } from 'pg'\ndeclare const client: Client",
  stock:
    'declare const stock: { reserve(order: object, key: string): Promise<number>; release(key: string): Promise<void> }',
  pay: 'declare const pay: { charge(total: number, key: string): Promise<object>; refund(...keys: string[]): Promise<void>; find(key: string): Promise<object | undefined> }',
  confirm: 'declare function confirm(tx: object, id: string): Promise<void>',
  reopen: 'declare function reopen(tx: object, id: string): Promise<void>',
  finish: 'declare function finish(tx: object, id: string, status: string, reason?: string): Promise<void>',
  Services: 'declare class Services { mustAddUp(status: string): void }',
  define: "declare function define(services: object): import('waybill/saga').AnySaga",
  fulfilment: "declare const fulfilment: import('waybill/saga').AnySaga",
  orders:
    "declare const orders: import('waybill/projection').ProjectionId & { reopen(tx: object, id: string): Promise<void> }",
  redis: "import type { Redis } from 'ioredis'\ndeclare const redis: Redis",
  buyerId: 'declare const buyerId: string',
  mainStore: 'declare function mainStore(buyer: string): Promise<object[]>',
  fromView: 'declare function fromView(buyer: string): Promise<object[]>',
  book: 'declare function book(tx: object, data: object): Promise<string>',
  cancel: 'declare function cancel(tx: object, data: object): Promise<void>',
  url: 'declare const url: string',
  id: 'declare const id: string',
  since: 'declare const since: Date',
  until: 'declare const until: Date',
  billing: "import type { Router as Routes } from 'waybill'\ndeclare const billing: Routes",
  queue: "import type { Source } from 'waybill'\ndeclare const queue: Source",
  cleaner: "import type { Cleaner } from 'waybill'\ndeclare const cleaner: Cleaner",
  app: "import type { Worker } from 'waybill'\ndeclare const app: Worker",
  server: 'declare const server: { get(path: string, answer: () => unknown): void }',
  alert: 'declare function alert(text: string): void',
  page: 'declare function page(text: string): void',
  publish: 'declare function publish(event: object): Promise<void>',
  work: 'declare function work(): Promise<void>',
  handle: 'declare function handle(event: object): Promise<void>',
  CardDeclined: 'declare class CardDeclined extends Error {}',
  InvoiceSent: "import { event as sent } from 'waybill'\nconst InvoiceSent = sent<{ orderId: string }>('invoice.sent')",
  secrets: 'declare const secrets: string[]',
  orderId: 'declare const orderId: string',
  promClient: "import * as promClient from 'prom-client'",
  otelApi: "import * as otelApi from '@opentelemetry/api'",
  test: 'declare function test(name: string, run: () => Promise<void>): void',
  Mutation: "import type { Mutation } from '../../scripts/mutations/mutation.ts'",
}

/** The same name is something else on the pages of these. */
const OF_PAGE: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'docs/guides/kafka.md': {
    broker: "import type { KafkaBroker } from 'waybill/kafka'\ndeclare const broker: KafkaBroker",
  },
  'docs/guides/nats.md': { broker: "import type { NatsBroker } from 'waybill/nats'\ndeclare const broker: NatsBroker" },
  'docs/guides/rabbitmq.md': {
    broker: "import type { RabbitmqBroker } from 'waybill/rabbitmq'\ndeclare const broker: RabbitmqBroker",
  },
  'docs/guides/redis-outbox.md': {
    db: "import type { RedisOutbox, RedisStore } from 'waybill/redis'\ndeclare const db: RedisStore<RedisOutbox>",
  },
  'docs/guides/redis-due.md': {
    db: "import type { RedisOutbox, RedisStore } from 'waybill/redis'\ndeclare const db: RedisStore<RedisOutbox>",
    expiresAt: 'declare const expiresAt: Date, later: Date',
    TicketExpired:
      "import { event } from 'waybill'\nconst TicketExpired = event<{ ticketId: string }>('ticket.expired')",
  },
  'docs/guides/redis.md': {
    db: "import type { RedisStore } from 'waybill/redis'\ndeclare const db: RedisStore",
    source: "import type { StreamsSource } from 'waybill/redis-streams'\ndeclare const source: StreamsSource",
    letter: 'declare const letter: { id: string }',
  },
  'docs/guides/routing.md': {
    rabbit: "import type { Publisher } from 'waybill'\ndeclare const rabbit: Publisher, nats: Publisher",
  },
  'docs/guides/saga-requests.md': {
    ShipOrder: [
      "import { event as named } from 'waybill'",
      "const ShipOrder = named<{ order: string }>('ship.order'), CancelShipment = named<{ order: string }>('ship.cancel')",
      "const Shipped = named<{ parcel: string }>('shipped'), ShipRefused = named<{ why: string }>('ship.refused')",
      "const ShipmentCancelled = named<object>('ship.cancelled'), ParcelDelivered = named<{ order: string }>('delivered')",
    ].join('\n'),
    insertOrder: 'declare function insertOrder(tx: object, id: string): Promise<void>',
  },
  'docs/guides/status.md': {
    broker: "import type { RabbitmqBroker } from 'waybill/rabbitmq'\ndeclare const broker: RabbitmqBroker",
  },
}

/** Pages that are checked in another way. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  'docs/guides/write-an-adapter.md': 'its samples are one file, which test/testing/write-an-adapter.test.ts runs',
  'docs/guides/write-a-store.md': 'its samples are one file, which test/testing/write-a-store.test.ts runs',
}

interface Sample {
  /** Where the compiler believes it to be. */
  readonly file: string
  readonly text: string
  readonly page: string
  /** Line of the page minus line of the text. */
  readonly shift: number
}

/** Every sample of every page is right by its types, against the package's own sources. */
export async function samples(): Promise<Findings> {
  const pages = readText(
    (await trackedFiles()).filter((path) => path.endsWith('.md') && !Object.hasOwn(ELSEWHERE, path)),
  )
  const all = pages.flatMap(samplesOf)
  return { problems: wrongIn(all), notes: [`${all.length} samples`] }
}

export function samplesOf({ path, text }: TextFile): Sample[] {
  return [...text.matchAll(/^```ts\n(.*?)^```/gms)].map(({ 1: code, index }, at) => {
    const known = { ...BEFORE, ...OF_PAGE[path] }
    const before = Object.entries(known).filter(([name]) => uses(code!, name) && !makes(code!, name))
    const lead = before.map(([, text]) => `${text}\n`).join('')
    const line = text.slice(0, index).split('\n').length + 1
    const file = join(root, 'test', 'samples', `${path.replace(/\W/g, '-')}-${at + 1}.mts`)
    return { file, text: `${lead}${code}\nexport {}\n`, page: path, shift: line - lead.split('\n').length }
  })
}

function uses(code: string, name: string): boolean {
  return new RegExp(`(?<![.\\w'])${name}(?![\\w':])`).test(code)
}

function makes(code: string, name: string): boolean {
  return new RegExp(`(const|let|function|class) (\\{[^}]*)?${name}\\b|import .*\\b${name}\\b`).test(code)
}

/** One program for all of them; only the samples are checked, the sources under them are by `types`. */
export function wrongIn(all: readonly Sample[]): string[] {
  const texts = new Map(all.map(({ file, text }) => [file, text]))
  const options: ts.CompilerOptions = {
    strict: true,
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.NodeNext,
    types: ['node'],
    skipLibCheck: true,
    noEmit: true,
    allowImportingTsExtensions: true,
    paths: sources(),
  }
  const host = ts.createCompilerHost(options)
  const { readFile, fileExists } = host
  host.readFile = (file) => texts.get(file) ?? readFile(file)
  host.fileExists = (file) => texts.has(file) || fileExists(file)
  const program = ts.createProgram([...texts.keys()], options, host)
  return all.flatMap(({ file, page, shift }) => {
    const source = program.getSourceFile(file)!
    const found = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)]
    return found.map(({ messageText, start = 0, code }) => {
      const line = source.getLineAndCharacterOfPosition(start).line + 1 + shift
      return `${page}:${line}  TS${code}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`
    })
  })
}

/** The package's names, as its sources: nothing must be built first. */
function sources(): Record<string, string[]> {
  const modules = Object.entries(manifest().exports).filter(([subpath]) => !subpath.endsWith('.json'))
  return Object.fromEntries(
    modules.map(([subpath, { default: built }]) => [
      subpath.replace(/^\./, 'waybill'),
      [join(root, built.replace('./dist/', 'src/').replace(/\.js$/, '.ts'))],
    ]),
  )
}
