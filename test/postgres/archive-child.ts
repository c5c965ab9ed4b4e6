/** Cleans an outbox into files until it is killed. Arguments: connection string, folder. */
import pg from 'pg'
import { databaseOf } from '../../src/drivers/sql/database.ts'
import { PostgresOutboxAdmin } from '../../src/postgres/admin.ts'
import { OutboxNames } from '../../src/postgres/names.ts'

const [url, directory] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: url!, application_name: 'archive-child' })
const admin = new PostgresOutboxAdmin(databaseOf(pool as never), new OutboxNames('outbox'), {
  archive: { directory: directory! },
})
await admin.clean({ limit: 50 })
await pool.end()
