import { readFile, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { PGlite } from '@electric-sql/pglite'
import { cached } from '../../scripts/services/cache.ts'

/**
 * A PGlite of one's own. Making its database takes three seconds of a processor, opening a copy half of one: it is made once
 * for each version and kept with the servers' files.
 */
export async function freshPGlite(): Promise<PGlite> {
  const home = join(createRequire(import.meta.url).resolve('@electric-sql/pglite'), '..', '..')
  const { version } = JSON.parse(await readFile(join(home, 'package.json'), 'utf8'))
  const folder = await cached(`clusters/pglite-${version}`, async (draft) => {
    const first = await PGlite.create()
    const data = await first.dumpDataDir('none')
    await first.close()
    await writeFile(join(draft, FILE), Buffer.from(await data.arrayBuffer()))
  })
  return await PGlite.create({ loadDataDir: new Blob([await readFile(join(folder, FILE))]) })
}

const FILE = 'data.tar'
