/**
 * Debian packages unpacked into the cache instead of installed: no root needed, no service started or user created by
 * a package script, nothing on the machine changed. apt runs with lists and folders of its own and checks signatures
 * against the keyring the machine already has.
 */
import { createHash } from 'node:crypto'
import { mkdir, readdir, readlink, rm, symlink, writeFile } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'
import { distributionSources, lineOf, type Source } from './apt-sources.ts'
import { cached, exists } from './cache.ts'
import { command, onPath } from './files.ts'

export interface Wanted {
  packages: string[]
  /** Other suites than the machine's own; then `packages` names everything, dependencies are not added. */
  sources?: (own: Source[]) => Source[]
  /** Last changes to the unpacked files. */
  finish?: (root: string) => Promise<void>
}

type Apt = (args: string[]) => Promise<string>

/** Returns the folder that stands for `/` in the packages' paths. */
export async function debianPackages(key: string, wanted: Wanted, say: (text: string) => void): Promise<string> {
  const home = await cached(`debian/${key}`, async (dir) => {
    if (!onPath('apt-get')) throw new Error('there is no apt-get on this machine')
    const own = await distributionSources()
    const sources = wanted.sources ? wanted.sources(own) : own
    if (!sources.length) throw new Error("this machine's apt sources do not name a Debian archive")
    say(`fetching Debian packages: ${wanted.packages.join(' ')}`)
    const scratch = join(dir, 'apt')
    const apt = await privateApt(scratch, await lists(sources), wanted.sources === undefined)
    const names = wanted.sources ? wanted.packages : await withMissingDependencies(apt, wanted.packages)
    await apt(['download', ...names])
    for (const file of await readdir(scratch)) {
      if (file.endsWith('.deb')) await command('dpkg-deb', ['-x', join(scratch, file), join(dir, 'root')])
    }
    await rm(scratch, { recursive: true })
    await relink(join(dir, 'root'), join(dir, 'root'))
    await wanted.finish?.(join(dir, 'root'))
    // The servers run as other users.
    await command('chmod', ['-R', 'a+rX', dir])
  })
  return join(home, 'root')
}

/** Shared by the packages of one day: parsing them anew for each would take longer than all downloads. */
async function lists(sources: Source[]): Promise<string> {
  const text = `${sources.map(lineOf).join('\n')}\n`
  const hash = createHash('sha256').update(text).digest('hex').slice(0, 8)
  return await cached(`debian/lists-${hash}-${new Date().toISOString().slice(0, 10)}`, async (dir) => {
    await mkdir(join(dir, 'lists', 'partial'), { recursive: true })
    await writeFile(join(dir, 'sources.list'), text)
    const apt = await privateApt(join(dir, 'scratch'), dir, true)
    await apt(['update', '--error-on=any'])
    await rm(join(dir, 'scratch'), { recursive: true })
  })
}

async function privateApt(scratch: string, listsDir: string, ownSuite: boolean): Promise<Apt> {
  await mkdir(join(scratch, 'archives', 'partial'), { recursive: true })
  const nothing = join(scratch, 'status')
  await writeFile(nothing, '')
  const settings = {
    'Dir::State::Lists': join(listsDir, 'lists'),
    'Dir::Etc::SourceList': join(listsDir, 'sources.list'),
    'Dir::Etc::SourceParts': '-',
    'Dir::Cache': scratch,
    'Dir::Cache::pkgcache': 'pkgcache.bin',
    'Dir::Cache::srcpkgcache': 'srcpkgcache.bin',
    // Of the own suite, what is installed need not be fetched again; an older suite's libraries are all needed.
    ...(ownSuite ? {} : { 'Dir::State::status': nothing }),
    'APT::Sandbox::User': 'root',
    'Acquire::Languages': 'none',
    'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled': 'false',
    'Acquire::Retries': '3',
  }
  const options = Object.entries(settings).flatMap(([name, value]) => ['-o', `${name}=${value}`])
  return (args) => command('apt-get', ['-q', ...options, ...args], { cwd: scratch, env: { LC_ALL: 'C' } })
}

async function withMissingDependencies(apt: Apt, packages: string[]): Promise<string[]> {
  const plan = await apt(['-s', 'install', '--no-install-recommends', ...packages])
  const missing = [...plan.matchAll(/^Inst (\S+)/gm)].map((match) => match[1]!)
  return [...new Set([...packages, ...missing])]
}

/** Links to absolute paths would leave the folder: let those whose target was unpacked too point at that. */
async function relink(root: string, folder: string): Promise<void> {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) await relink(root, path)
    if (!entry.isSymbolicLink()) continue
    const target = await readlink(path)
    if (!target.startsWith('/') || !(await exists(join(root, target)))) continue
    await rm(path)
    await symlink(relative(dirname(path), join(root, target)), path)
  }
}

/** For binaries that were unpacked, not installed. */
export async function libraryPath(root: string): Promise<{ LD_LIBRARY_PATH: string }> {
  const folders = []
  for (const base of [join(root, 'usr/lib'), join(root, 'lib')]) {
    const names = await readdir(base).catch(() => [])
    folders.push(base, ...names.filter((name) => name.includes('-linux-gnu')).map((name) => join(base, name)))
  }
  return { LD_LIBRARY_PATH: folders.join(':') }
}
