/**
 * Other libraries that run SQL in transactions of their own, of exact versions that run on Node 20. They are no dependency of
 * ours: the first test that needs them installs them into the cache folder.
 */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { cached } from '../../scripts/services/cache.ts'
import { command } from '../../scripts/services/files.ts'

const VERSIONS = {
  pg: '8.23.1',
  'drizzle-orm': '0.45.4',
  kysely: '0.28.18',
  knex: '3.3.0',
  typeorm: '0.3.31',
  sequelize: '6.37.8',
  '@mikro-orm/core': '6.6.16',
  '@mikro-orm/postgresql': '6.6.16',
  prisma: '7.10.0',
  '@prisma/client': '7.10.0',
  '@prisma/adapter-pg': '7.10.0',
} as const

/** Prisma reads its client from a schema. */
const SCHEMA = `generator client {
  provider = "prisma-client-js"
  output   = "./node_modules/notes-client"
}
datasource db {
  provider = "postgresql"
}
model notes {
  text String @id
}
`

// biome-ignore lint/suspicious/noExplicitAny: their types are not installed here
type Loaded = any

/** Loads a module as one in the folder of the installation would. */
export type Load = (name: string) => Promise<Loaded>

const QUIETLY = ['--ignore-scripts', '--legacy-peer-deps', '--no-audit', '--no-fund', '--loglevel=error']

export async function installOrms(): Promise<Load> {
  const home = await cached('npm/orms-1', async (dir) => {
    await writeFile(join(dir, 'package.json'), JSON.stringify({ private: true, dependencies: VERSIONS }))
    await command('npm', ['install', ...QUIETLY], { cwd: dir })
    await writeFile(join(dir, 'schema.prisma'), SCHEMA)
    await writeFile(join(dir, 'prisma.config.mjs'), `export default { schema: 'schema.prisma' }\n`)
    // The engine that it would fetch otherwise is for migrations.
    const env = { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: '/bin/true', CHECKPOINT_DISABLE: '1' }
    await command('npx', ['prisma', 'generate', '--config', 'prisma.config.mjs'], { cwd: dir, env })
    await writeFile(join(dir, 'load.mjs'), 'export const load = (name) => import(name)\n')
  })
  const { load } = (await import(/* @vite-ignore */ pathToFileURL(join(home, 'load.mjs')).href)) as { load: Load }
  return load
}
