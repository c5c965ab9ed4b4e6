import type { Database } from '../drivers/sql/sql.ts'
import { AmbientUnitOfWork } from '../store/unit-of-work.ts'

/**
 * Transactions on PostgreSQL. A COMMIT that the server answers with ROLLBACK is an error (ROLLED_BACK); a database that
 * is away is `Unavailable`, so that no message is blamed; a transaction that has ended cannot be used.
 */
export class PostgresUnitOfWork<Tx = unknown> extends AmbientUnitOfWork<Tx> {
  constructor(database: Database<Tx>) {
    super((fn, signal) => database.transaction(fn, signal))
  }
}
