import { answered, cellOf, channelName, Loss, refuseListening, statementName, Turns } from './connection.ts'
import { type PgClient, type PgQuery, type PgResult, pgResult } from './pg-shapes.ts'
import type { Cell, Connection, ConnectOptions, SqlResult, SqlValue } from './sql.ts'
import { isStatementError } from './transaction.ts'

/** Leaves every column as the text the server sent. */
const asText = { getTypeParser: (type: number) => (text: string) => cellOf(text, type) }

/** One client of a `pg.Pool`, kept for long. */
export class PgConnection implements Connection {
  readonly pooled: boolean
  readonly #client: PgClient
  readonly #giveBack: (broken: boolean) => void
  readonly #prepare: boolean
  readonly #timeout: number | undefined
  readonly #loss = new Loss()
  readonly #turns = new Turns()
  readonly #onError = (error: unknown): void => this.#loss.tell(error)
  readonly #onEnd = (): void => this.#loss.tell(new Error('PostgreSQL closed the connection'))
  readonly #channels = new Map<string, () => void>()
  #touched = false
  #released = false

  static async open(
    client: PgClient,
    options: ConnectOptions,
    giveBack: (broken: boolean) => void,
  ): Promise<PgConnection> {
    try {
      const asked = client.query('SELECT pg_backend_pid() AS pid')
      const [row] = (await answered(asked, options.timeout, () => {})).rows as { pid: number }[]
      const pooled = client.processID != null && client.processID !== row?.pid
      const connection = new PgConnection(client, options, giveBack, pooled)
      if (options.applicationName !== undefined && !pooled) await connection.#introduce(options.applicationName)
      return connection
    } catch (error) {
      giveBack(true)
      throw error
    }
  }

  private constructor(client: PgClient, options: ConnectOptions, giveBack: (broken: boolean) => void, pooled: boolean) {
    this.#client = client
    this.#giveBack = giveBack
    this.pooled = pooled
    this.#prepare = options.prepare && !pooled
    this.#timeout = options.timeout
    client.on('error', this.#onError)
    client.on('end', this.#onEnd)
    client.on('notification', this.#onNotification)
  }

  async query(text: string, values?: readonly SqlValue[]): Promise<SqlResult> {
    return pgResult(await this.#send({ text, values: values as unknown[] }))
  }

  async read(name: string, text: string, values: readonly SqlValue[]): Promise<readonly (readonly Cell[])[]> {
    const query: PgQuery = { text, values: values as unknown[], rowMode: 'array', types: asText }
    if (this.#prepare) query.name = statementName(name, text)
    return (await this.#send(query)).rows as Cell[][]
  }

  async run(name: string, text: string, values: readonly SqlValue[]): Promise<number> {
    const query: PgQuery = { text, values: values as unknown[] }
    if (this.#prepare) query.name = statementName(name, text)
    return (await this.#send(query)).rowCount ?? 0
  }

  async listen(channel: string, onNotify: () => void): Promise<void> {
    const name = channelName(channel)
    if (this.pooled) throw refuseListening()
    this.#touched = true
    this.#channels.set(channel, onNotify)
    await this.#send({ text: `LISTEN ${name}` })
  }

  onLost(listener: (error: unknown) => void): void {
    this.#loss.listen(listener)
  }

  /** What the session remembers (a name, channels, locks) must not come to light in another's hands: it is closed. */
  async release(broken = false): Promise<void> {
    if (this.#released) return
    this.#released = true
    const client = this.#client
    client.removeListener('error', this.#onError)
    client.removeListener('end', this.#onEnd)
    client.removeListener('notification', this.#onNotification)
    this.#giveBack(broken || this.#loss.happened || this.#touched)
    this.#loss.close()
  }

  async #introduce(name: string): Promise<void> {
    this.#touched = true
    await this.#send({ text: "SELECT set_config('application_name', $1, false)", values: [name] })
  }

  readonly #onNotification = (notification: { channel: string }): void => {
    this.#channels.get(notification.channel)?.()
  }

  async #send(query: PgQuery): Promise<PgResult> {
    this.#loss.check()
    try {
      return await answered(
        this.#turns.run(() => this.#client.query(query)),
        this.#timeout,
        this.#onError,
      )
    } catch (error) {
      // The server's last words come before the end itself: a client given back in between would be used again.
      if (!isStatementError(error)) this.#onError(error)
      throw error
    }
  }
}
