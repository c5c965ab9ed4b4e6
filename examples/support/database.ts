import { cpSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { PGlite } from '@electric-sql/pglite'

/**
 * A folder with an empty database in it. Making one takes seconds, opening one does not: so it is made once, kept in
 * `.cache`, and copied.
 */
export async function emptyDatabase(folder: string): Promise<void> {
  const { version } = JSON.parse(
    readFileSync(new URL('../package.json', import.meta.resolve('@electric-sql/pglite')), 'utf8'),
  )
  const cache = new URL('../../.cache/', import.meta.url)
  const kept = new URL(`empty-pglite-${version}`, cache)
  if (!existsSync(kept)) {
    mkdirSync(cache, { recursive: true })
    const made = new URL(`empty-pglite-${version}-${process.pid}`, cache)
    const pglite = await PGlite.create(fileURLToPath(made))
    await pglite.close()
    try {
      renameSync(made, kept)
    } catch {
      rmSync(made, { recursive: true }) // another was quicker
    }
  }
  cpSync(kept, folder, { recursive: true })
}
