import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll } from 'vitest'

interface Esbuild {
  buildSync(options: Record<string, unknown>): unknown
}

const root = fileURLToPath(new URL('../..', import.meta.url))
const built = new Map<string, string>()
let folder: string | undefined

/**
 * A script for `runScript` as one plain file: it starts in a quarter of the time of its TypeScript, and tests start many.
 * For scripts that do not ask where they are.
 */
export function bundled(script: URL): string {
  const known = built.get(script.href)
  if (known !== undefined) return known
  // Below node_modules, so that the drivers are found from there.
  const cache = join(root, 'node_modules', '.cache')
  mkdirSync(cache, { recursive: true })
  folder ??= mkdtempSync(join(cache, 'waybill-children-'))
  const { buildSync } = createRequire(createRequire(import.meta.url).resolve('tsx'))('esbuild') as Esbuild
  const entry = fileURLToPath(script)
  const outfile = join(folder, `${built.size}-${basename(entry, '.ts')}.mjs`)
  buildSync({ entryPoints: [entry], bundle: true, platform: 'node', format: 'esm', packages: 'external', outfile })
  built.set(script.href, outfile)
  return outfile
}

afterAll(() => {
  if (folder !== undefined) rmSync(folder, { recursive: true, force: true })
})
