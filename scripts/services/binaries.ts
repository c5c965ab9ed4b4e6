/** The usual way to executables: installed on this machine in a version that will do, or unpacked from Debian. */
import { dirname, join } from 'node:path'
import { debianPackages, libraryPath, type Wanted } from './debian.ts'
import { command, onPath } from './files.ts'
import type { Binaries } from './types.ts'

export interface Executable {
  name: string
  /** Its folder inside the Debian package. */
  folder: string
  /** Arguments that make it print its version. */
  version: string[]
  accept: (version: string) => boolean
}

export async function installed(executable: Executable): Promise<Binaries | null> {
  const path = onPath(executable.name)
  if (!path) return null
  const version = await versionOf(path, executable.version).catch(() => '')
  return version && executable.accept(version) ? { origin: 'installed', version, bin: dirname(path) } : null
}

export async function unpacked(
  key: string,
  wanted: Wanted,
  executable: Executable,
  say: (text: string) => void,
): Promise<Binaries> {
  const root = await debianPackages(key, wanted, say)
  const env = await libraryPath(root)
  const bin = join(root, executable.folder)
  const version = await versionOf(join(bin, executable.name), executable.version, env)
  if (!executable.accept(version)) throw new Error(`Debian has ${executable.name} ${version} here, which will not do`)
  return { origin: 'debian', version, bin, env }
}

async function versionOf(path: string, args: string[], env: Record<string, string> = {}): Promise<string> {
  return /(\d+\.\d+(\.\d+)?)/.exec(await command(path, args, { env }))?.[1] ?? ''
}
