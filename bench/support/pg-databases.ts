import type { BenchServer } from './pg-server.ts'

/**
 * Databases filled once and copied for every round: all rounds of a contestant begin with the same bytes on disk,
 * vacuumed and analysed, as they would be some time after they were written.
 */
export class Databases {
  readonly #server: BenchServer
  readonly #templates = new Map<string, Promise<void>>()
  #copies = 0

  constructor(server: BenchServer) {
    this.#server = server
  }

  /** Creates `name` and has it filled, the first time it is asked for. */
  template(name: string, fill: (url: string) => Promise<void>): Promise<void> {
    const known = this.#templates.get(name)
    if (known !== undefined) return known
    const made = this.#make(name, fill)
    this.#templates.set(name, made)
    return made
  }

  async #make(name: string, fill: (url: string) => Promise<void>): Promise<void> {
    await this.#server.sql('postgres', `CREATE DATABASE "${name}"`)
    await fill(this.#server.url(name))
    await this.#server.sql(name, 'VACUUM (FREEZE, ANALYZE)')
  }

  /** A copy for one round, gone afterwards. */
  async within<T>(template: string, work: (database: string) => Promise<T>): Promise<T> {
    const name = `round_${++this.#copies}`
    const { sql } = this.#server
    await sql('postgres', `CREATE DATABASE "${name}" TEMPLATE "${template}" STRATEGY file_copy`)
    try {
      await sql('postgres', 'CHECKPOINT')
      return await work(name)
    } finally {
      await sql('postgres', `DROP DATABASE "${name}" WITH (FORCE)`)
    }
  }

  async drop(template: string): Promise<void> {
    await this.#server.sql('postgres', `DROP DATABASE IF EXISTS "${template}" WITH (FORCE)`)
    this.#templates.delete(template)
  }
}
