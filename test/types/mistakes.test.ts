import ts from 'typescript'
import { beforeAll, expect, test } from 'vitest'
import { samplesOf, wrongIn } from '../../scripts/check/samples.ts'
import { filesUnder, readText } from '../../scripts/check/tracked.ts'

/** Mistakes of the first hour, and what the compiler must say of each: the thing that is wrong, by its name, once. */
const MISTAKES = {
  'a pool in place of a transaction': {
    code: 'await db.outbox.enqueue(pool, placed)',
    says: ["Argument of type 'Pool' is not assignable to parameter of type 'PoolClient'", 'tx: PoolClient'],
  },
  'an option that does not exist': {
    code: "await db.outbox.enqueue(client, placed, { kee: 'A-1' })",
    says: [
      "TS2353: Object literal may only specify known properties, and 'kee' does not exist in type 'PostgresEnqueueOptions'",
    ],
  },
  'an option of a wrong type': {
    code: 'await db.outbox.enqueue(client, placed, { availableAt: 5 })',
    says: ["TS2322: Type 'number' is not assignable to type 'Date'"],
  },
  'a payload without a field': {
    code: "await db.outbox.enqueue(client, OrderPlaced({ orderId: 'A-1' }))",
    says: ["TS2345: Argument of type '{ orderId: string; }'", "Property 'total' is missing"],
  },
  'a payload with a wrong field': {
    code: "await db.outbox.enqueue(client, OrderPlaced({ orderId: 'A-1', total: '30' }))",
    says: ["TS2322: Type 'string' is not assignable to type 'number'"],
  },
  'an option of postgres()': {
    code: 'const mine = postgres({ pool, outbx: {} })',
    says: [
      "TS2561: Object literal may only specify known properties, but 'outbx' does not exist",
      "Did you mean to write 'outbox'?",
    ],
  },
  'an option of a relay': {
    code: 'const relay = new Relay({ from: db.outbox, to: async () => {}, concurency: 3 })',
    says: [
      "TS2561: Object literal may only specify known properties, but 'concurency' does not exist",
      "Did you mean to write 'concurrency'?",
    ],
  },
  'an option of redis()': {
    code: "const mine = redis({ client: new Redis(), tag: 'shop', inbx: {} })",
    says: ["TS2561: Object literal may only specify known properties, but 'inbx' does not exist", "write 'inbox'?"],
  },
  'an option of an outbox on Redis': {
    code: "const mine = redis({ client: new Redis(), tag: 'shop', outbox: { kind: 'stored', retentoin: '1d' } })",
    says: ["TS2561: Object literal may only specify known properties, but 'retentoin'", "write 'retention'?"],
  },
  'a kind of outbox that Redis does not have': {
    code: "const mine = redis({ client: new Redis(), tag: 'shop', outbox: { kind: 'stord' } })",
    says: [`TS2820: Type '"stord"' is not assignable to type '"stream" | "stored" | undefined'`],
  },
  'a store in place of its outbox': {
    code: 'const relay = new Relay({ from: db, to: async () => {} })',
    says: ["TS2322: Type 'Postgres<PoolClient>' is not assignable to type", 'OutboxReader'],
  },
  'an option of a step': {
    code: "const order = saga('order', { version: 1 }).step('charge', () => 1, { undoo: () => {} })",
    says: ["TS2561: Object literal may only specify known properties, but 'undoo' does not exist", "write 'undo'?"],
  },
  'an option of a projection': {
    code: "const list = projection('list', { version: 1, tabel: 'list', key: 'id' })",
    says: ["TS2561: Object literal may only specify known properties, but 'tabel' does not exist", "write 'table'?"],
  },
  'something no middleware has added': {
    code: "router.use({ name: 'user', add: () => ({ user: 'anna' }) }).on(OrderPlaced, async (_, { usr }) => {})",
    says: ["TS2339: Property 'usr' does not exist on type", '{ user: string; }'],
  },
} satisfies Record<string, { code: string; says: string[] }>

const RIGHT = [
  "const one: string = await db.outbox.enqueue(client, placed, { key: 'A-1', serialize: true })",
  'const many: string[] = await db.outbox.enqueue(client, [placed, placed])',
  'const here: string = await db.outbox.enqueue(placed)',
  'const all: string[] = await db.outbox.enqueue([placed], { topic: "orders" })',
  "router.use({ name: 'user', add: async () => ({ user: 'anna' }) }).on(OrderPlaced, async (_, { user, attempt }) => console.log(user.length + attempt))",
  'router.use(transactional(postgres({ pool }))).on(OrderPlaced, async (_, { tx }) => { await tx.query("SELECT 1"); tx.escapeIdentifier("a") })',
  'router.use(transactional(postgres({ pool: new PGlite() }))).on(OrderPlaced, async (_, { tx }) => { await tx.query("SELECT 1"); await tx.exec("x") })',
  "redis({ client: new Redis(), tag: 'shop', outbox: { kind: 'stored' } }).outbox.repair()",
  "redis({ client: new Redis(), tag: 'shop', outbox: { stream: 'out' } }).outbox.forwarding",
  "redis({ client: new Redis(), tag: 'shop' }).outbox.forwarding",
  'router.use(transactional(postgres({ pool: postgresJs() }))).on(OrderPlaced, async (_, { tx }) => { await tx`SELECT 1` })',
]

const LEAD = `import { PGlite } from '@electric-sql/pglite'
import { Redis } from 'ioredis'
import postgresJs from 'postgres'
import { Relay, Router, transactional } from 'waybill'
import { postgres } from 'waybill/postgres'
import { projection } from 'waybill/projection'
import { redis } from 'waybill/redis'
import { saga } from 'waybill/saga'
const placed = OrderPlaced({ orderId: 'A-1', total: 30 })
const router = new Router('billing')
`

let said: string[]

// One program for all of them: each costs seconds.
beforeAll(() => {
  const page = (name: string, code: string) => ({ path: name, text: `\`\`\`ts\n${LEAD}${code}\n\`\`\`\n` })
  const codes = [
    ...Object.entries(MISTAKES).map(([name, { code }]) => page(name, code)),
    page('right', RIGHT.join('\n')),
  ]
  said = wrongIn(codes.flatMap(samplesOf))
}, 120_000)

test.each(Object.entries(MISTAKES))('%s', (name, { says }) => {
  const own = said.filter((text) => text.startsWith(`${name}:`))
  expect(own).toHaveLength(1)
  for (const text of says) expect(own[0]).toContain(text)
})

test('what is right is right, and inferred', () => {
  expect(said.filter((text) => text.startsWith('right:'))).toEqual([])
})

test('nothing has more than two signatures: with three the compiler explains each, and the mistake is lost among them', () => {
  const sources = readText(filesUnder('src').filter((path) => path.endsWith('.ts') && !path.includes('.generated.')))
  const counts = sources.flatMap(({ path, text }) => signaturesIn(path, text))
  expect(counts.filter(({ count }) => count > 2)).toEqual([])
  // `enqueue` of each store: with a transaction, and without.
  expect(counts.filter(({ name, count }) => name === 'enqueue' && count === 2).length).toBeGreaterThan(3)
})

/** How many signatures without a body each function and method has, by its name. */
function signaturesIn(path: string, text: string): { path: string; name: string; count: number }[] {
  const found: { path: string; name: string; count: number }[] = []
  const visit = (parent: ts.Node): void => {
    const names = new Map<string, number>()
    ts.forEachChild(parent, (node) => {
      const declared = (ts.isFunctionDeclaration(node) || ts.isMethodDeclaration(node)) && node.body === undefined
      if (declared || ts.isMethodSignature(node) || ts.isCallSignatureDeclaration(node)) {
        const name = node.name?.getText() ?? 'call'
        names.set(name, (names.get(name) ?? 0) + 1)
      }
      visit(node)
    })
    for (const [name, count] of names) found.push({ path, name, count })
  }
  visit(ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true))
  return found
}
