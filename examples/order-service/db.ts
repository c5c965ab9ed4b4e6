// The stores. Each service has a schema of its own and reads nobody else's; elsewhere these are three databases.
// Nothing is connected here: a pool opens connections when it is first used.

import pg from 'pg'
import { postgres } from 'waybill/postgres'

/** The transaction that handlers and saga steps are given: the client of `pg`, as it is. */
export type Tx = pg.PoolClient

function poolOf(schema: string): pg.Pool {
  const connectionString = process.env['DATABASE_URL']
  return new pg.Pool({ connectionString, options: `-c search_path=${schema}`, max: 15 })
}

export const pools = { orders: poolOf('orders'), inventory: poolOf('inventory'), billing: poolOf('billing') }

export const stores = {
  // A log: its events stay readable in their order, which is what the view is made from.
  orders: postgres({ pool: pools.orders, outbox: { log: true }, sagas: true, projections: true }),
  // A barrier: what a saga asks for, and takes back, in whatever order that arrives.
  inventory: postgres({ pool: pools.inventory, barrier: true }),
  billing: postgres({ pool: pools.billing, barrier: true }),
}

const TABLES = {
  orders: `
    CREATE TABLE IF NOT EXISTS buyers (id text PRIMARY KEY, name text NOT NULL);
    CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, buyer_id text NOT NULL REFERENCES buyers, sku text NOT NULL,
      quantity int NOT NULL, total int NOT NULL, status text NOT NULL DEFAULT 'new', reason text NOT NULL DEFAULT '',
      created_at timestamptz NOT NULL DEFAULT now())`,
  inventory: `
    CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, on_hand int NOT NULL CHECK (on_hand >= 0));
    CREATE TABLE IF NOT EXISTS reservations (order_id uuid PRIMARY KEY, sku text NOT NULL REFERENCES stock, quantity int NOT NULL);
    INSERT INTO stock VALUES ('tea', 500), ('mug', 200), ('pot', 20) ON CONFLICT DO NOTHING`,
  billing: `
    CREATE TABLE IF NOT EXISTS invoices (order_id uuid PRIMARY KEY, buyer_id text NOT NULL, total int NOT NULL,
      state text NOT NULL DEFAULT 'open');
    CREATE TABLE IF NOT EXISTS letters (order_id uuid NOT NULL, text text NOT NULL, at timestamptz NOT NULL DEFAULT now())`,
}

/** Once per deploy, before the processes start: two that create the same table at the same time get into each other's way. */
export async function migrate(): Promise<void> {
  for (const name of ['orders', 'inventory', 'billing'] as const) {
    await pools[name].query(`CREATE SCHEMA IF NOT EXISTS ${name}`)
    await stores[name].migrate()
    await pools[name].query(TABLES[name])
    await pools[name].end()
  }
}
