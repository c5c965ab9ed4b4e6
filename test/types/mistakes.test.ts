import { beforeAll, expect, test } from 'vitest'
import { samplesOf, wrongIn } from '../../scripts/check/samples.ts'

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
  'router.use(transactional(postgres({ pool: postgresJs() }))).on(OrderPlaced, async (_, { tx }) => { await tx`SELECT 1` })',
]

const LEAD = `import { PGlite } from '@electric-sql/pglite'
import postgresJs from 'postgres'
import { Relay, Router, transactional } from 'waybill'
import { postgres } from 'waybill/postgres'
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
