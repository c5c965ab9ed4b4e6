import { cpSync, existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { npm, root, runBin, temporaryFolder } from './run.ts'

export interface Manifest {
  name: string
  files: string[]
  exports: Record<string, { default: string }>
}

export function manifest(): Manifest {
  return JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Manifest
}

let packing: Promise<string> | undefined

/**
 * The tarball users would get, packed once per run. It is built from nothing in a folder of its own: dist/ may hold
 * modules whose source is gone, and someone may be rebuilding it at this moment.
 */
export function packedTarball(): Promise<string> {
  packing ??= pack()
  return packing
}

async function pack(): Promise<string> {
  const folder = temporaryFolder('pack')
  const stage = join(folder, 'package')
  for (const name of ['package.json', 'README.md', 'LICENSE', ...manifest().files]) {
    const exists = !/[*!]/.test(name) && name !== 'dist' && existsSync(join(root, name))
    if (exists) cpSync(join(root, name), join(stage, name), { recursive: true })
  }

  const places = ['--outDir', join(stage, 'dist'), '--tsBuildInfoFile', join(folder, 'tsbuildinfo')]
  const built = await runBin('typescript/bin/tsc', ['-p', 'tsconfig.build.json', ...places])
  if (built.code !== 0) throw new Error(`the package does not build:\n${built.output.trim()}`)

  const packed = await npm(['pack', '--json', '--ignore-scripts', '--pack-destination', folder], { cwd: stage })
  if (packed.code !== 0) throw new Error(`npm pack failed:\n${packed.output.trim()}`)
  const [{ filename }] = JSON.parse(packed.stdout) as [{ filename: string }]
  return join(folder, filename)
}
