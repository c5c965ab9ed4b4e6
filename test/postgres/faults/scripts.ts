import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

type Build = (options: Record<string, unknown>) => Promise<unknown>

const root = fileURLToPath(new URL('../../..', import.meta.url))
const built = new Map<string, Promise<string>>()
let folder: string | undefined

/** A child script as one plain file: it starts in a quarter of the time, and these tests start many. */
export function script(name: string): Promise<string> {
  const known = built.get(name)
  if (known !== undefined) return known
  const building = bundle(name)
  built.set(name, building)
  return building
}

async function bundle(name: string): Promise<string> {
  // Below node_modules, so that the drivers are found from there.
  const cache = join(root, 'node_modules', '.cache')
  mkdirSync(cache, { recursive: true })
  if (folder === undefined) {
    const mine = mkdtempSync(join(cache, 'waybill-faults-'))
    process.on('exit', () => rmSync(mine, { recursive: true, force: true }))
    folder = mine
  }
  const { build } = createRequire(createRequire(import.meta.url).resolve('tsx'))('esbuild') as { build: Build }
  const outfile = join(folder, `${name}.mjs`)
  const entry = fileURLToPath(new URL(`./${name}.ts`, import.meta.url))
  await build({ entryPoints: [entry], bundle: true, platform: 'node', format: 'esm', packages: 'external', outfile })
  return outfile
}
